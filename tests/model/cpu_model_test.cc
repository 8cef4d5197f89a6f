// A whole model on the CPU backend: what does not depend on its threads, and
// what it keeps in memory.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "model/checkpoint.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/step_builder.h"

namespace nibble::model {
namespace {

using kernels::Device;
using kernels::QuantFormat;

constexpr int32_t kPageSize = 16;
constexpr int32_t kPages = 8;

// Logits of a prompt and of one generated token after it, as bytes.
std::string RunWith(const std::string& path, int32_t threads) {
  const auto checkpoint = Checkpoint::Open(path).value();
  const auto backend = kernels::MakeBackend(Device::kCpu, threads).value();
  const auto model = Model::Load(*checkpoint, *backend,
                                 {.max_batch_rows = 128, .max_logit_rows = 128})
                         .value();
  const auto cache =
      KvCache::Create(checkpoint->config(), *backend, kPages, kPageSize)
          .value();
  std::vector<int32_t> pages(kPages), tokens(101);
  std::iota(pages.begin(), pages.end(), 0);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>(i * 37 % test::kSmallModelVocab);
  }
  std::string logits;
  const auto step = [&](std::span<const int32_t> some, int32_t first) {
    Batch batch;
    test::AppendShare(batch, kPageSize,
                      {.tokens = some, .first = first, .pages = pages});
    const kernels::TensorView y = model->Forward(batch, *cache);
    for (int64_t i = 0; i < y.rows; ++i) {
      logits.append(reinterpret_cast<const char*>(y.RowF32(i)),
                    y.cols * sizeof(float));
    }
  };
  step(std::span(tokens).first(100), 0);
  step(std::span(tokens).last(1), 100);
  return logits;
}

TEST(CpuModelTest, LogitsAreTheSameBitsForAnyNumberOfThreads) {
  for (const QuantFormat format :
       {QuantFormat::kQ4_1, QuantFormat::kQ8_0, QuantFormat::kF16}) {
    const test::TemporaryFile file(
        test::WriteSmallModel({.format = format}).Build());
    const std::string alone = RunWith(file.path(), 1);
    for (const int32_t threads : {2, 4}) {
      EXPECT_TRUE(RunWith(file.path(), threads) == alone)
          << kernels::Name(format) << ", " << threads << " threads";
    }
  }
}

// Kilobytes of the file that are in this process's memory (proc(5), smaps).
int64_t ResidentOf(const std::string& path) {
  std::ifstream maps("/proc/self/smaps");
  int64_t resident = 0;
  bool ours = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') != std::string::npos &&
        line.find(' ') > line.find('-')) {
      ours = line.ends_with(path);
    }
    if (ours && line.starts_with("Rss:")) {
      resident += std::stoll(line.substr(4));
    }
  }
  return resident;
}

TEST(CpuModelTest, KeepsWeightsOnce) {
  const test::TemporaryFile file(
      test::WriteSmallModel(
          {.format = QuantFormat::kF32, .feed_forward_size = 960})
          .Build());
  const auto checkpoint = Checkpoint::Open(file.path()).value();
  int64_t sum = 0;
  for (const kernels::WeightView& weight : checkpoint->tensors()) {
    for (int64_t i = 0; i < weight.Bytes(); i += 512) {
      sum += std::to_integer<int64_t>(weight.data[i]);
    }
  }
  EXPECT_NE(sum, 0);
  EXPECT_GT(ResidentOf(file.path()), 1000);
  const auto backend = kernels::MakeBackend(Device::kCpu, 2).value();
  const auto model = Model::Load(*checkpoint, *backend,
                                 {.max_batch_rows = 8, .max_logit_rows = 8})
                         .value();
  EXPECT_EQ(ResidentOf(file.path()), 0);
}

}  // namespace
}  // namespace nibble::model
