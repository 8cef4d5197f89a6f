// W4A16: the same bits in every run, with programmatic dependent launch and
// without, in a graph and outside.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/linear/w4a16.h"
#include "tests/kernels/cuda/w4_cases.h"
#include "tests/kernels/cuda/w4_harness.h"
#include "tests/kernels/cuda/w4_reference.h"
#include "tests/support/quantize_groups.h"
#include "tests/support/random.h"

namespace nibble::test {
namespace {

using kernels::DType;
using kernels::LaunchSpec;
using kernels::QuantFormat;
using kernels::WeightView;
using kernels::cuda::DeviceBuffer;
using kernels::cuda::Graph;
using kernels::cuda::GraphExec;
using kernels::cuda::W4Args;
using kernels::cuda::W4Epilogue;

class W4Bits : public GpuTest {};

TEST_F(W4Bits, AHundredRunsAgree) {
  constexpr int kRuns = 100;
  constexpr int64_t kN = 2112;
  constexpr int64_t kK = 3584;
  for (const char* name : {"int4_g128", "q4_k", "nvfp4"}) {
    Random random(1);
    const CaseWeight weight(WeightCaseByName(name), kN, kK, random);
    const WeightView view = weight.View();
    const DeviceWeight device = DeviceWeight::Make({&view, 1}).value();
    const Inputs& x = Inputs::Normal(DType::kBF16, kK);
    for (const int64_t m : {1, 16, 64, 257}) {
      Job job = Job::Of(device, x, m);
      std::optional<std::vector<std::byte>> expected;
      for (const LaunchSpec& spec : Runner::Get().Candidates(job)) {
        for (int run = 0; run < kRuns; ++run) {
          job.overlap = run % 2 == 1;
          const Result result = Runner::Get().Run(job, spec);
          if (!expected.has_value()) expected = Copy(result, m, kN);
          ASSERT_EQ(CompareBits(result, *expected, m, kN), "")
              << name << " m=" << m << " run " << run << " " << spec.ToString();
        }
      }
    }
  }
}

// Layers that feed each other as those of a model: a = W1 h, h += W2 a. Each
// reads what the one before wrote and overwrites what it read.
class Chain final {
 public:
  Chain() {
    Random random(7);
    up_ = Make(kWide, kNarrow, random);
    down_ = Make(kNarrow, kWide, random);
    start_ = ToDevice<std::byte>(
        Encode(DType::kBF16, random.Normals(kNormalRows * kNarrow)));
    h_ = DeviceBuffer::Make(start_.bytes()).value();
    a_ = DeviceBuffer::Make(kNormalRows * kWide * 2).value();
  }

  // h after all layers.
  std::vector<std::byte> Run(int64_t m, const LaunchSpec& up,
                             const LaunchSpec& down, bool overlap,
                             bool as_graph) {
    const Runner& runner = Runner::Get();
    // Reserved outside of the capture.
    void* const scratch = Runner::Get().Scratch(m, kWide);
    const auto enqueue = [&] {
      NIBBLE_CUDA_CHECK(cudaMemcpyAsync(h_.data(), start_.data(), h_.bytes(),
                                        cudaMemcpyDeviceToDevice,
                                        runner.stream().get()));
      for (int layer = 0; layer < kLayers; ++layer) {
        Launch(up_, up, m, h_, a_, W4Epilogue::kStore, overlap, scratch);
        Launch(down_, down, m, a_, h_, W4Epilogue::kAdd, overlap, scratch);
      }
    };
    if (as_graph) {
      const GraphExec exec(Graph::Capture(runner.stream(), enqueue));
      for (int replay = 0; replay < kReplays; ++replay) {
        exec.Launch(runner.stream());
      }
      runner.stream().Synchronize();
    } else {
      enqueue();
      runner.stream().Synchronize();
    }
    std::vector<std::byte> result(static_cast<size_t>(m * kNarrow * 2));
    NIBBLE_CUDA_CHECK(cudaMemcpy(result.data(), h_.data(), result.size(),
                                 cudaMemcpyDeviceToHost));
    return result;
  }

  std::vector<LaunchSpec> Candidates(bool up, int64_t m) const {
    return kernels::cuda::W4Candidates(
        up ? up_.view : down_.view, m,
        up ? W4Epilogue::kStore : W4Epilogue::kAdd, Runner::Get().device());
  }

 private:
  static constexpr int64_t kNarrow = 1024;
  static constexpr int64_t kWide = 2816;
  static constexpr int kLayers = 6;
  static constexpr int kReplays = 5;

  // Weights that keep the size of a vector.
  static DeviceWeight Make(int64_t n, int64_t k, Random& random) {
    const GroupWeight weight = QuantizeGroups(
        {.format = QuantFormat::kInt4, .n = n, .k = k, .group = 128},
        random.Normals(n * k, 1 / std::sqrt(static_cast<float>(k))), random);
    const WeightView view = weight.View();
    return DeviceWeight::Make({&view, 1}).value();
  }

  static void Launch(const DeviceWeight& w, const LaunchSpec& spec, int64_t m,
                     const DeviceBuffer& x, const DeviceBuffer& y,
                     W4Epilogue epilogue, bool overlap, void* scratch) {
    const W4Args args{.w = w.view,
                      .x = x.data(),
                      .ldx = w.view.k,
                      .y = y.data(),
                      .ldy = w.view.n,
                      .m = m,
                      .n_out = w.view.n,
                      .epilogue = epilogue,
                      .scratch = scratch};
    const Runner& runner = Runner::Get();
    kernels::cuda::LaunchW4(args, spec, runner.device(), runner.stream().get(),
                            {.overlap = overlap});
  }

  DeviceWeight up_;
  DeviceWeight down_;
  DeviceBuffer start_;  // [kNormalRows, kNarrow] BF16
  DeviceBuffer h_;      // like it
  DeviceBuffer a_;      // [kNormalRows, kWide] BF16
};

TEST_F(W4Bits, OverlapAndGraphsChangeNothing) {
  Chain chain;
  for (const int64_t m : {1, 5, 16, 64, 257}) {
    const std::vector<LaunchSpec> ups = chain.Candidates(true, m);
    const std::vector<LaunchSpec> downs = chain.Candidates(false, m);
    const std::vector<std::byte> expected =
        chain.Run(m, ups[0], downs[0], false, false);
    double norm = 0;
    for (int64_t i = 0; i < m * 1024; ++i) {
      norm += std::pow(Decode(DType::kBF16, expected.data() + 2 * i), 2);
    }
    ASSERT_TRUE(std::isfinite(norm) && norm > 0) << "m=" << m;
    for (size_t i = 0; i < std::max(ups.size(), downs.size()); ++i) {
      const LaunchSpec& up = ups[i % ups.size()];
      const LaunchSpec& down = downs[i % downs.size()];
      for (const bool overlap : {false, true}) {
        for (const bool as_graph : {false, true}) {
          // More than once: a race need not show the first time.
          for (int run = 0; run < 5; ++run) {
            ASSERT_TRUE(chain.Run(m, up, down, overlap, as_graph) == expected)
                << "m=" << m << " overlap=" << overlap << " graph=" << as_graph
                << " " << up.ToString() << " then " << down.ToString();
          }
        }
      }
    }
  }
}

// The same row everywhere: all rows of y must be equal, whatever M and whatever
// kernel.
void CheckEqualRows(const std::string& name, int64_t n, int64_t k) {
  Random random(1);
  const CaseWeight weight(WeightCaseByName(name), n, k, random);
  const WeightView view = weight.View();
  const auto device = DeviceWeight::Make({&view, 1});
  ASSERT_TRUE(device.ok()) << device.status();
  const std::vector<float> row = random.Normals(k, kNormalDeviation);
  std::vector<float> values;
  for (int64_t i = 0; i < kNormalRows; ++i) {
    values.insert(values.end(), row.begin(), row.end());
  }
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const Inputs x(dtype, kNormalRows, values);
    std::optional<std::vector<std::byte>> expected;
    for (const int64_t m : {1, 4, 16, 64, 257}) {
      Job job = Job::Of(*device, x, m);
      job.y_dtype = DType::kF32;
      for (const LaunchSpec& spec : Runner::Get().Candidates(job)) {
        const Result result = Runner::Get().Run(job, spec);
        if (!expected.has_value()) expected = Copy(result, 1, n);
        for (int64_t i = 0; i < m; ++i) {
          Result one = result;
          one.data = result.Row(i);
          ASSERT_EQ(CompareBits(one, *expected, 1, n), "")
              << name << " k=" << k << " m=" << m << " row " << i << " "
              << spec.ToString();
        }
      }
    }
  }
}

TEST_F(W4Bits, ARowIsTheSameWhereverItStands) {
  for (const char* name : {"int4_g128", "q4_0", "awq_g32", "mxfp4"}) {
    CheckEqualRows(name, 576, 2880);
    CheckEqualRows(name, 144, 768);
  }
}

}  // namespace
}  // namespace nibble::test
