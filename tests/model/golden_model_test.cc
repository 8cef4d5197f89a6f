// SmolLM2-135M-Instruct against an independent FP32 implementation of its
// dequantized weights; tests/golden/README.md says how the data were made.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/device.h"
#include "model/checkpoint.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "nlohmann/json.hpp"
#include "tests/support/step_builder.h"

namespace nibble::model {
namespace {

using kernels::Device;
using test::AppendShare;
using test::Logits;

constexpr int32_t kPageSize = 16;
constexpr int32_t kPagesEach = 8;

// One prompt of greedy.json.
struct Case {
  std::string text;
  std::vector<int32_t> prompt;
  std::vector<int32_t> tokens;  // the greedy continuation
  // Best (id, log-probability) pairs before each of `tokens`.
  std::vector<std::vector<std::pair<int32_t, double>>> top;
  // Log-probabilities of ids 0, stride, 2 stride, ... after the prompt.
  std::vector<double> sample;
};

struct Golden {
  int32_t stride = 0;
  std::vector<Case> cases;
};

Golden ReadGolden() {
  std::ifstream file(NIBBLE_SOURCE_DIR "/tests/golden/greedy.json");
  const nlohmann::json json = nlohmann::json::parse(file);
  Golden golden = {.stride = json.at("stride"), .cases = {}};
  for (const auto& entry : json.at("cases")) {
    entry.at("top").get_to(golden.cases
                               .emplace_back(Case{entry.at("text"),
                                                  entry.at("prompt"),
                                                  entry.at("tokens"),
                                                  {},
                                                  entry.at("sample")})
                               .top);
  }
  return golden;
}

// log p(id) = logits[id] - LogSum(logits).
double LogSum(std::span<const float> logits) {
  const double best = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - best);
  return best + std::log(sum);
}

int32_t Argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) -
                              logits.begin());
}

class GoldenModelTest : public ::testing::Test {
 protected:
  void Load(Device device) {
    const std::string path =
        NIBBLE_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (!std::filesystem::exists(path)) {
      GTEST_SKIP() << path << " is missing: run scripts/fetch-model";
    }
    golden_ = ReadGolden();
    ASSERT_EQ(golden_.cases.size(), 20u);
    auto checkpoint = Checkpoint::Open(path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = *std::move(checkpoint);
    backend_ = *kernels::MakeBackend(device, 0);
    auto model = Model::Load(*checkpoint_, *backend_,
                             {.max_batch_rows = 512, .max_logit_rows = 128});
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    const auto count = static_cast<int32_t>(golden_.cases.size());
    cache_ = *KvCache::Create(checkpoint_->config(), *backend_,
                              count * kPagesEach, kPageSize);
    for (int32_t page = 0; page < count * kPagesEach; ++page) {
      pages_.push_back(page);
    }
  }

  std::span<const int32_t> PagesOf(size_t index) const {
    return std::span(pages_).subspan(index * kPagesEach, kPagesEach);
  }

  // Continues every prompt for `steps` tokens, all in one batch, choosing the
  // best logit; `first` sees each prompt's last logits.
  template <typename First>
  std::vector<std::vector<int32_t>> Greedy(int32_t steps, First first) {
    std::vector<std::vector<int32_t>> generated(golden_.cases.size());
    for (int32_t step = 0; step < steps; ++step) {
      Batch batch;
      for (size_t i = 0; i < golden_.cases.size(); ++i) {
        const auto& prompt = golden_.cases[i].prompt;
        const auto length = static_cast<int32_t>(prompt.size());
        AppendShare(batch, kPageSize,
                    {.tokens = step == 0 ? std::span<const int32_t>(prompt)
                                         : std::span<const int32_t>(
                                               &generated[i].back(), 1),
                     .first = step == 0 ? 0 : length + step - 1,
                     .pages = PagesOf(i),
                     .logits = Logits::kLast});
      }
      if (step > 0) batch.decode_rows = batch.rows();
      const kernels::TensorView logits = model_->Forward(batch, *cache_);
      for (size_t i = 0; i < golden_.cases.size(); ++i) {
        const std::span<const float> row(logits.RowF32(static_cast<int64_t>(i)),
                                         logits.cols);
        if (step == 0) first(i, row);
        generated[i].push_back(Argmax(row));
      }
    }
    return generated;
  }

  Golden golden_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvCache> cache_;
  std::vector<int32_t> pages_;
};

// ||ours - theirs|| / ||theirs|| of a sample of logits, both about their mean:
// log-probabilities are logits up to a constant.
double SampleError(std::span<const float> logits, const Case& expected,
                   int32_t stride) {
  const auto count = static_cast<double>(expected.sample.size());
  double our_mean = 0;
  double their_mean = 0;
  for (size_t i = 0; i < expected.sample.size(); ++i) {
    our_mean += logits[i * stride] / count;
    their_mean += expected.sample[i] / count;
  }
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < expected.sample.size(); ++i) {
    const double theirs = expected.sample[i] - their_mean;
    const double error = logits[i * stride] - our_mean - theirs;
    difference += error * error;
    norm += theirs * theirs;
  }
  return std::sqrt(difference / norm);
}

TEST_F(GoldenModelTest, ReferenceGivesTheSameGreedyTextAndLogits) {
  ASSERT_NO_FATAL_FAILURE(Load(Device::kReference));
  if (IsSkipped()) return;
  double worst_error = 0;
  const auto generated =
      Greedy(32, [&](size_t i, std::span<const float> logits) {
        const double error =
            SampleError(logits, golden_.cases[i], golden_.stride);
        EXPECT_LT(error, 1e-3) << golden_.cases[i].text;
        worst_error = std::max(worst_error, error);
      });
  int equal = 0;
  for (size_t i = 0; i < golden_.cases.size(); ++i) {
    equal += generated[i] == golden_.cases[i].tokens ? 1 : 0;
  }
  EXPECT_GE(equal, 19);
  RecordProperty("equal_prompts", equal);
  std::printf("%d of 20 greedy texts equal, worst logit error %.2e\n", equal,
              worst_error);
}

// How far one row of logits is from the golden best tokens.
struct RowDistance {
  // KL(golden, ours) of the distributions over the best tokens and all the
  // rest as one: a lower bound of the whole KL.
  double kl = 0;
  bool same_top = false;
};

RowDistance Distance(std::span<const float> logits,
                     const std::vector<std::pair<int32_t, double>>& top) {
  const double log_sum = LogSum(logits);
  RowDistance distance = {.kl = 0, .same_top = Argmax(logits) == top[0].first};
  double their_rest = 1;
  double our_rest = 1;
  for (const auto& [id, log_p] : top) {
    const double our_log_p = logits[id] - log_sum;
    distance.kl += std::exp(log_p) * (log_p - our_log_p);
    their_rest -= std::exp(log_p);
    our_rest -= std::exp(our_log_p);
  }
  // The golden logarithms have four decimals: a rest below that is noise.
  constexpr double kNoise = 1e-3;
  if (their_rest > kNoise && our_rest > kNoise) {
    distance.kl += their_rest * std::log(their_rest / our_rest);
  }
  return distance;
}

TEST_F(GoldenModelTest, CpuStaysNear) {
  ASSERT_NO_FATAL_FAILURE(Load(Device::kCpu));
  if (IsSkipped()) return;
  double kl = 0;
  int same_top = 0;
  int count = 0;
  for (size_t i = 0; i < golden_.cases.size(); ++i) {
    const Case& expected = golden_.cases[i];
    // The golden text itself, so that rows stay comparable after a choice
    // that differs.
    std::vector<int32_t> tokens = expected.prompt;
    tokens.insert(tokens.end(), expected.tokens.begin(),
                  expected.tokens.end() - 1);
    Batch batch;
    AppendShare(
        batch, kPageSize,
        {.tokens = tokens, .pages = PagesOf(i), .logits = Logits::kNone});
    for (size_t row = expected.prompt.size() - 1; row < tokens.size(); ++row) {
      batch.logit_rows.push_back(static_cast<int32_t>(row));
    }
    const kernels::TensorView logits = model_->Forward(batch, *cache_);
    for (int64_t row = 0; row < logits.rows; ++row) {
      const RowDistance distance =
          Distance({logits.RowF32(row), static_cast<size_t>(logits.cols)},
                   expected.top[row]);
      kl += distance.kl;
      same_top += distance.same_top ? 1 : 0;
      ++count;
    }
  }
  ASSERT_EQ(count, 640);
  std::printf("mean KL over 640 tokens %.5f, same top token %.2f%%\n",
              kl / count, 100.0 * same_top / count);
  // Twice what 8-bit activations cost on a long text (tests/golden/README.md),
  // and three standard errors below its share of equal tokens.
  EXPECT_LE(kl / count, 0.003);
  EXPECT_GE(same_top, 640 * 96 / 100);
}

TEST_F(GoldenModelTest, CpuBeginsMostTextsAlike) {
  ASSERT_NO_FATAL_FAILURE(Load(Device::kCpu));
  if (IsSkipped()) return;
  const auto generated = Greedy(4, [](size_t, std::span<const float>) {});
  int first = 0;
  int all = 0;
  for (size_t i = 0; i < golden_.cases.size(); ++i) {
    const auto& expected = golden_.cases[i].tokens;
    first += generated[i][0] == expected[0] ? 1 : 0;
    all +=
        std::equal(generated[i].begin(), generated[i].end(), expected.begin())
            ? 1
            : 0;
  }
  std::printf("first token equal in %d, first four in %d of 20\n", first, all);
  EXPECT_GE(first, 17);
  EXPECT_GE(all, 14);
}

}  // namespace
}  // namespace nibble::model
