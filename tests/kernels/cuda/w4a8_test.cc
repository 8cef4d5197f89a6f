// Every format of W4A8 multiplications in odd shapes, any number of rows, every
// tile: right to exact integers or FP64, the same bits whatever the launch and
// M, nothing written outside of y.
#include "kernels/cuda/linear/w4a8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/kernels/cuda/w4_harness.h"
#include "tests/kernels/cuda/w4_reference.h"
#include "tests/kernels/cuda/w4a8_harness.h"

namespace nibble::test {
namespace {

using kernels::DType;
using kernels::LaunchSpec;
using kernels::cuda::W4a8Format;
using kernels::cuda::W4a8Kind;
using kernels::cuda::W4a8Problem;
using kernels::reference::W4A8Dot;

struct Shape {
  int64_t n;
  int64_t k;
};
// Whole tiles; part of a tile of rows, a warp's and one row; k that ends within
// a pair of stages, a stage and a group of 128.
constexpr Shape kShapes[] = {
    {128, 256}, {320, 1'024}, {72, 32}, {129, 2'080}, {440, 576}};
constexpr int64_t kManyRows = 300;

class W4a8Test : public GpuTest,
                 public ::testing::WithParamInterface<W4a8Format> {};

// How far off FP32 sums may be: minimums are two BF16 numbers (2^-17), and up
// to 135 groups are added. The tensor cores' sums of FP8 products have some 13
// bits.
double Tolerance(const W4A8Dot& dot, W4a8Kind kind, DType dtype) {
  const double rounding = dtype == DType::kF32    ? 0
                          : dtype == DType::kBF16 ? 0x1p-8
                                                  : 0x1p-11;
  const double sums = kind == W4a8Kind::kE4m3 ? 0x1p-12 : 0x1p-15;
  return sums * dot.magnitude + rounding * std::fabs(dot.value) + 0x1p-24;
}

void ExpectRight(const std::vector<W4A8Dot>& expected, const W4a8Output& output,
                 W4a8Kind kind, DType dtype, const std::string& what) {
  ASSERT_EQ(output.problem, "") << what;
  const int64_t size = kernels::ElementBytes(dtype);
  for (size_t i = 0; i < expected.size(); ++i) {
    const double y = Decode(dtype, output.y.data() + i * size);
    ASSERT_LE(std::fabs(y - expected[i].value),
              Tolerance(expected[i], kind, dtype))
        << what << " at " << i << ": " << y << ", not " << expected[i].value;
  }
}

TEST_P(W4a8Test, IsRightInOddShapesAndTypes) {
  for (const Shape& shape : kShapes) {
    const W4a8Problem problem{GetParam(), kManyRows, shape.n, shape.k};
    const W4a8Operands operands(problem, W4a8Numbers::kAny);
    const std::vector<W4A8Dot> expected = operands.Expected();
    const auto specs = W4a8Specs(problem);
    ASSERT_FALSE(specs.empty());
    for (const LaunchSpec& spec : specs) {
      ExpectRight(expected,
                  RunW4a8(operands, kManyRows, DType::kF32, true, spec),
                  GetParam().kind, DType::kF32,
                  problem.ToString() + " " + spec.ToString());
    }
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const bool aligned : {true, false}) {
        ExpectRight(expected,
                    RunW4a8(operands, kManyRows, dtype, aligned, specs[0]),
                    GetParam().kind, dtype, problem.ToString());
      }
    }
  }
}

TEST_P(W4a8Test, AddsToWhatIsThere) {
  for (const Shape& shape : kShapes) {
    const W4a8Problem problem{GetParam(), kManyRows, shape.n, shape.k};
    const W4a8Operands operands(problem, W4a8Numbers::kAny);
    std::vector<W4A8Dot> expected = operands.Expected();
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      expected[i].value += W4a8Residual(at / shape.n, at % shape.n);
    }
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      for (const bool aligned : {true, false}) {
        ExpectRight(expected,
                    RunW4a8(operands, kManyRows, dtype, aligned,
                            W4a8Specs(problem)[0], W4a8Then::kAdd),
                    GetParam().kind, dtype, problem.ToString());
      }
    }
  }
}

// Numbers whose sums no FP32 number rounds: every product is there once.
TEST_P(W4a8Test, IntegersAreExact) {
  if (GetParam().kind == W4a8Kind::kRerounded) return;  // has other scales
  for (const Shape& shape : kShapes) {
    const W4a8Problem problem{GetParam(), kManyRows, shape.n, shape.k};
    const W4a8Operands operands(problem, W4a8Numbers::kIntegers);
    const std::vector<W4A8Dot> expected = operands.Expected();
    for (const LaunchSpec& spec : W4a8Specs(problem)) {
      const W4a8Output output =
          RunW4a8(operands, kManyRows, DType::kF32, true, spec);
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(Decode(DType::kF32, output.y.data() + i * 4),
                  expected[i].value)
            << problem.ToString() << " " << spec.ToString() << " at " << i;
      }
    }
  }
}

TEST_P(W4a8Test, SumsOfGroupsAreExact) {
  if (!GetParam().HasMinimums()) return;
  for (const Shape& shape : kShapes) {
    const W4a8Operands operands({GetParam(), 33, shape.n, shape.k},
                                W4a8Numbers::kAny);
    EXPECT_EQ(operands.Sums(), operands.ExpectedSums()) << shape.k;
  }
}

// Rows are the same bits in every tile and for every M.
TEST_P(W4a8Test, AnyNumberOfRowsGivesTheSameBits) {
  const W4a8Problem all{GetParam(), kManyRows, 200, 1'056};
  const W4a8Operands operands(all, W4a8Numbers::kAny);
  const W4a8Output expected =
      RunW4a8(operands, kManyRows, DType::kF32, true, W4a8Specs(all)[0]);
  std::vector<int64_t> ms = {63,  64,  65,  95,  96,  97, 127,
                             128, 129, 192, 255, 256, 257};
  for (int64_t m = 1; m <= 33; ++m) ms.push_back(m);
  for (const int64_t m : ms) {
    W4a8Problem problem = all;
    problem.m = m;
    for (const LaunchSpec& spec : W4a8Specs(problem)) {
      const W4a8Output output =
          RunW4a8(operands, m, DType::kF32, m % 2 == 0, spec);
      ASSERT_EQ(output.problem, "") << m << " " << spec.ToString();
      ASSERT_EQ(
          std::memcmp(output.y.data(), expected.y.data(), output.y.size()), 0)
          << "m=" << m << " " << spec.ToString();
    }
  }
}

// More tiles than CTAs, so that each walks over several, a hundred times.
TEST_P(W4a8Test, GivesTheSameBitsAHundredTimes) {
  const W4a8Problem problem{GetParam(), 3'000, 2'100, 1'024};
  const W4a8Operands operands(problem, W4a8Numbers::kAny);
  std::vector<std::byte> first;
  for (const LaunchSpec& spec : W4a8Specs(problem)) {
    for (int i = 0; i < 25; ++i) {
      const W4a8Output output =
          RunW4a8(operands, problem.m, DType::kBF16, true, spec);
      ASSERT_EQ(output.problem, "") << spec.ToString();
      if (first.empty()) first = output.y;
      ASSERT_EQ(output.y, first) << spec.ToString() << " run " << i;
    }
  }
}

TEST_P(W4a8Test, NoRowsAreANoOp) {
  const W4a8Problem problem{GetParam(), 1, 64, 256};
  const W4a8Operands operands(problem, W4a8Numbers::kAny);
  for (const LaunchSpec& spec : W4a8Specs(problem)) {
    EXPECT_EQ(RunW4a8(operands, 0, DType::kBF16, true, spec).problem, "");
  }
}

std::string FormatName(const ::testing::TestParamInfo<W4a8Format>& info) {
  return kernels::cuda::W4a8Name(info.param);
}
INSTANTIATE_TEST_SUITE_P(Formats, W4a8Test,
                         ::testing::ValuesIn(kernels::cuda::kW4a8Formats),
                         FormatName);

}  // namespace
}  // namespace nibble::test
