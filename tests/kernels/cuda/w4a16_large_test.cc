// W4A16 where products of sizes pass 2^31. Data repeats with a period, so that
// all of a result can be compared with its beginning, and that with FP64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/linear/w4a16.h"
#include "tests/kernels/cuda/w4_cases.h"
#include "tests/kernels/cuda/w4_harness.h"
#include "tests/kernels/cuda/w4_reference.h"
#include "tests/support/random.h"

namespace nibble::test {
namespace {

using kernels::DType;
using kernels::LaunchSpec;
using kernels::WeightView;
using kernels::cuda::DeviceBuffer;
using kernels::cuda::W4Args;

class W4Large : public LargeGpuTest {
 protected:
  // Runs `args` with `spec` and checks rows [begin, end) of y, BF16: row i is
  // row i % kNormalRows of the reference.
  static void CheckRows(const DeviceBuffer& y, const W4Args& args,
                        const Reference& reference, int64_t begin, int64_t end,
                        const LaunchSpec& spec) {
    const int64_t row_bytes = args.ldy * 2;
    std::vector<std::byte> host(static_cast<size_t>((end - begin) * row_bytes));
    NIBBLE_CUDA_CHECK(cudaMemcpy(host.data(), y.data() + begin * row_bytes,
                                 host.size(), cudaMemcpyDeviceToHost));
    for (int64_t i = begin; i < end; ++i) {
      const Result row{.data = host.data() + (i - begin) * row_bytes,
                       .pitch_bytes = row_bytes,
                       .dtype = DType::kBF16};
      ASSERT_EQ(Compare(row, reference, 1, i % kNormalRows), "")
          << "row " << i << " of " << args.m << "x" << args.n_out << "x"
          << args.w.k << " " << spec.ToString();
    }
  }

  static void Launch(const W4Args& args, const LaunchSpec& spec) {
    const Runner& runner = Runner::Get();
    kernels::cuda::LaunchW4(args, spec, runner.device(), runner.stream().get());
    runner.stream().Synchronize();
  }

  static std::vector<LaunchSpec> Candidates(const W4Args& args) {
    return kernels::cuda::W4Candidates(args.w, args.m, args.epilogue,
                                       Runner::Get().device());
  }
};

TEST_F(W4Large, OutputsBeyondTwoToThe31) {
  constexpr int64_t kN = 32'784;  // 2,049 tiles
  constexpr int64_t kK = 288;
  constexpr int64_t kCopies = 256;
  constexpr int64_t kM = kCopies * kNormalRows;  // 65,792, above a grid's y
  static_assert(kM * kN > kTwoTo31);
  Random random(1);
  const CaseWeight weight(WeightCaseByName("q4_0"), kN, kK, random);
  const WeightView view = weight.View();
  const DeviceWeight device = DeviceWeight::Make({&view, 1}).value();
  const Inputs& period = Inputs::Normal(DType::kBF16, kK);
  const DeviceBuffer x =
      Repeat(period.device(), kNormalRows * period.pitch() * 2, kCopies);
  const DeviceBuffer y = DeviceBuffer::Make(kM * kN * 2).value();
  const Reference reference = Reference::Make(period, view, SampleColumns(kN));
  const W4Args args{.w = device.view,
                    .x = x.data(),
                    .ldx = period.pitch(),
                    .y = y.data(),
                    .ldy = kN,
                    .m = kM,
                    .n_out = kN,
                    .scratch = Runner::Get().Scratch(kM, kK)};
  for (const LaunchSpec& spec : Candidates(args)) {
    NIBBLE_CUDA_CHECK(cudaMemset(y.data(), 0xff, y.bytes()));
    NIBBLE_CUDA_CHECK(cudaDeviceSynchronize());
    Launch(args, spec);
    for (const int64_t begin : {int64_t{0}, kTwoTo31 / kN - 32, kM - 64}) {
      CheckRows(y, args, reference, begin, begin + 64, spec);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(W4Large, InputsBeyondTwoToThe31) {
  constexpr int64_t kN = 64;
  constexpr int64_t kK = 16'384;
  constexpr int64_t kCopies = 520;
  constexpr int64_t kM = kCopies * kNormalRows;  // 133,640
  static_assert(kM * kK > kTwoTo31);
  Random random(2);
  const CaseWeight weight(WeightCaseByName("int4_g128"), kN, kK, random);
  const WeightView view = weight.View();
  const DeviceWeight device = DeviceWeight::Make({&view, 1}).value();
  const Inputs& period = Inputs::Normal(DType::kBF16, kK);
  const DeviceBuffer x =
      Repeat(period.device(), kNormalRows * period.pitch() * 2, kCopies);
  const DeviceBuffer y = DeviceBuffer::Make(kM * kN * 2).value();
  const Reference reference = Reference::Make(period, view, SampleColumns(kN));
  const W4Args args{.w = device.view,
                    .x = x.data(),
                    .ldx = period.pitch(),
                    .y = y.data(),
                    .ldy = kN,
                    .m = kM,
                    .n_out = kN,
                    .scratch = Runner::Get().Scratch(kM, kK)};
  for (const LaunchSpec& spec : Candidates(args)) {
    NIBBLE_CUDA_CHECK(cudaMemset(y.data(), 0xff, y.bytes()));
    NIBBLE_CUDA_CHECK(cudaDeviceSynchronize());
    Launch(args, spec);
    CheckRows(y, args, reference, 0, kNormalRows, spec);
    CheckRows(y, args, reference, kM - kNormalRows, kM, spec);
    if (HasFatalFailure()) return;
    std::vector<std::byte> host(static_cast<size_t>(y.bytes()));
    NIBBLE_CUDA_CHECK(
        cudaMemcpy(host.data(), y.data(), host.size(), cudaMemcpyDeviceToHost));
    const int64_t period_bytes = kNormalRows * kN * 2;
    for (int64_t i = 1; i < kCopies; ++i) {
      ASSERT_TRUE(std::equal(host.begin(), host.begin() + period_bytes,
                             host.begin() + i * period_bytes))
          << "rows from " << i * kNormalRows << " on, " << spec.ToString();
    }
  }
}

TEST_F(W4Large, WeightsBeyondTwoToThe31Bytes) {
  constexpr int64_t kPeriod = 1'024;  // rows of W
  constexpr int64_t kK = 16'384;
  constexpr int64_t kCopies = 260;
  constexpr int64_t kN = kCopies * kPeriod;  // 266,240
  Random random(3);
  const CaseWeight weight(WeightCaseByName("mxfp4"), kPeriod, kK, random);
  const WeightView view = weight.View();
  const DeviceWeight period = DeviceWeight::Make({&view, 1}).value();
  const DeviceBuffer blocks =
      Repeat(period.blocks.data(), period.blocks.bytes(), kCopies);
  ASSERT_GT(blocks.bytes(), kTwoTo31);
  kernels::cuda::W4Weights w = period.view;
  w.blocks = blocks.data();
  w.n = kN;
  const Inputs& x = Inputs::Normal(DType::kBF16, kK);
  const Reference reference = Reference::Make(x, view, SampleColumns(kPeriod));
  for (const int64_t m : {1, 9, 64, 257}) {
    Job job = Job::Of(period, x, m);
    job.w = w;
    job.n_out = kN;
    job.y_dtype = DType::kBF16;
    for (const LaunchSpec& spec : Runner::Get().Candidates(job)) {
      const Result result = Runner::Get().Run(job, spec);
      ASSERT_EQ(Compare(result, reference, m), "")
          << "m=" << m << " " << spec.ToString();
      const std::vector<std::byte> expected = Copy(result, m, kPeriod);
      for (int64_t copy = 1; copy < kCopies; ++copy) {
        Result part = result;
        part.data += copy * kPeriod * 2;
        ASSERT_EQ(CompareBits(part, expected, m, kPeriod), "")
            << "m=" << m << " columns from " << copy * kPeriod << " on, "
            << spec.ToString();
      }
    }
  }
}

}  // namespace
}  // namespace nibble::test
