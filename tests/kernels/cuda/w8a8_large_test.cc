// W8A8 where products of sizes pass 2^31. Rows of x repeat with a period, so
// that all of a result can be compared with its beginning.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/linear/w8a8.h"
#include "tests/kernels/cuda/w4_harness.h"
#include "tests/kernels/cuda/w4_reference.h"
#include "tests/kernels/cuda/w8a8_harness.h"

namespace nibble::test {
namespace {

using kernels::DType;
using kernels::LaunchSpec;
using kernels::cuda::DeviceBuffer;
using kernels::cuda::kW8MmaTiles;
using kernels::cuda::W8Args;
using kernels::cuda::W8Config;
using kernels::cuda::W8Kind;
using kernels::cuda::W8Problem;
using kernels::cuda::W8Tile;
using kernels::cuda::W8Tiles;

constexpr int64_t kPeriod = 64;  // rows
class W8Large : public LargeGpuTest {
 protected:
  void SetUp() override {
    LargeGpuTest::SetUp();
    if (IsSkipped()) return;
    if (const std::string why = WhyNoW8(W8Kind::kInt8); !why.empty()) {
      GTEST_SKIP() << why;
    }
  }

  // Worth trying, for Hopper and for every device.
  static std::vector<LaunchSpec> Specs(const W8Problem& problem) {
    const W8Runner& runner = W8Runner::Get();
    std::vector<LaunchSpec> specs;
    for (const std::span<const W8Tile> tiles :
         {W8Tiles(problem.kind), std::span<const W8Tile>(kW8MmaTiles)}) {
      for (const W8Config& config :
           W8Configs(problem, runner.device(), tiles)) {
        const LaunchSpec spec = W8Spec(problem.kind, config);
        if (W8Feasible(problem, spec, runner.device())) specs.push_back(spec);
      }
    }
    return specs;
  }

  // Multiplies `copies` times the rows of the operands; y must be the rows of
  // one run of them, again and again.
  static void Check(W8Kind kind, int64_t n, int64_t k, int64_t copies) {
    if (const std::string why = WhyNoW8(kind); !why.empty()) {
      GTEST_SKIP() << why;
    }
    const W8Problem period{kind, kPeriod, n, k};
    const W8Operands operands({.problem = period, .codes = W8Codes::kSparse});
    const W8Runner& runner = W8Runner::Get();
    W8Args args = operands.Args(kPeriod);
    const int64_t x_bytes = kPeriod * args.x.pitch;
    const DeviceBuffer x = Repeat(args.x.codes, x_bytes, copies);
    const DeviceBuffer scales =
        Repeat(args.x.scales, kPeriod * sizeof(float), copies);
    const int64_t y_bytes = kPeriod * n * 2;
    const DeviceBuffer y = DeviceBuffer::Make(y_bytes * copies).value();
    const auto first = W8Runner::Get().Specs({kind, kPeriod, n, k}).front();
    W8Job job{.args = args};
    job.args.y_dtype = DType::kBF16;
    const W8Output expected = W8Runner::Get().Run(job, first);
    args.x.codes = x.data();
    args.x.scales = scales.as<float>();
    args.m = kPeriod * copies;
    args.y = y.data();
    args.ldy = n;
    args.y_dtype = DType::kBF16;
    std::vector<std::byte> host(static_cast<size_t>(y.bytes()));
    const W8Problem all{kind, args.m, n, k};
    for (const LaunchSpec& spec : Specs(all)) {
      NIBBLE_CUDA_CHECK(cudaMemset(y.data(), 0xff, y.bytes()));
      NIBBLE_CUDA_CHECK(cudaDeviceSynchronize());
      kernels::cuda::LaunchW8(args, spec, runner.device(),
                              runner.stream().get());
      runner.stream().Synchronize();
      NIBBLE_CUDA_CHECK(cudaMemcpy(host.data(), y.data(), host.size(),
                                   cudaMemcpyDeviceToHost));
      for (int64_t i = 0; i < copies; ++i) {
        ASSERT_EQ(
            std::memcmp(host.data() + i * y_bytes, expected.y.data(), y_bytes),
            0)
            << "rows from " << i * kPeriod << " on, " << all.ToString() << " "
            << spec.ToString();
      }
    }
  }
};

TEST_F(W8Large, OutputsBeyondTwoToThe31) {
  constexpr int64_t kN = 32'800, kCopies = 1'024;
  static_assert(kPeriod * kCopies * kN > kTwoTo31);
  Check(W8Kind::kInt8, kN, 144, kCopies);
  Check(W8Kind::kE4m3, kN, 144, kCopies);
}

TEST_F(W8Large, InputsBeyondTwoToThe31) {
  constexpr int64_t kK = 16'384, kCopies = 2'050;
  static_assert(kPeriod * kCopies * kK > kTwoTo31);
  Check(W8Kind::kInt8, 72, kK, kCopies);
  Check(W8Kind::kE4m3Fast, 72, kK, kCopies);
}

}  // namespace
}  // namespace nibble::test
