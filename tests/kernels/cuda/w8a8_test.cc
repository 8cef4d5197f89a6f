// Every kind of W8A8 multiplication in odd shapes, any number of rows, every
// tile and cluster: right to integers or FP64, the same bits whatever the
// launch and M, nothing written outside of y.
#include "kernels/cuda/linear/w8a8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "tests/kernels/cuda/w4_harness.h"
#include "tests/kernels/cuda/w4_reference.h"
#include "tests/kernels/cuda/w8a8_harness.h"

namespace nibble::test {
namespace {

using kernels::DType;
using kernels::LaunchSpec;
using kernels::cuda::kW8MmaTiles;
using kernels::cuda::W8Args;
using kernels::cuda::W8Kind;
using kernels::cuda::W8Problem;
using kernels::cuda::W8Scaling;
using kernels::cuda::W8Tile;
using kernels::cuda::W8Tiles;
using kernels::reference::CodedDot;

constexpr int64_t kManyRows = 257;
struct Shape {
  int64_t n, k;
};
// Tiles' borders and what checkpoints have, odd ones among them.
constexpr Shape kShapes[] = {{1, 1},       {31, 17},     {64, 96},
                             {72, 1'040},  {225, 128},   {320, 4'304},
                             {576, 1'536}, {1'440, 640}, {2'112, 272}};

class W8Test : public W8KindTest {};

// "" or where `y` [m, n], FP32, is off.
std::string Compare(const std::vector<std::byte>& y,
                    const W8Reference& reference, W8Kind kind) {
  double difference = 0, norm = 0;
  for (int64_t row = 0; row < reference.rows; ++row) {
    for (int64_t column = 0; column < reference.columns; ++column) {
      const CodedDot& dot = reference.At(row, column);
      const double got = Decode(
          DType::kF32, y.data() + (row * reference.columns + column) * 4);
      const double error = got - dot.value;
      if (!(std::fabs(error) <= W8SumError(kind, dot))) {
        return "y[" + std::to_string(row) + ", " + std::to_string(column) +
               "] is " + std::to_string(got) + ", not " +
               std::to_string(dot.value);
      }
      difference += error * error;
      norm += dot.value * dot.value;
    }
  }
  // Some 14 bits of each sum are left, for kE4m3Fast of all of it.
  const double allowed = kind == W8Kind::kInt8        ? 0x1p-22
                         : kind == W8Kind::kInt8Group ? 0x1p-20
                         : kind == W8Kind::kE4m3Fast  ? 5e-3
                                                      : 1e-3;
  if (!(difference <= allowed * allowed * norm)) {
    return "relative error " + std::to_string(std::sqrt(difference / norm));
  }
  return "";
}

// Tensor cores of Hopper sum FP8 products differently for its own tiles and for
// those of every device: each has its own bits.
TEST_P(W8Test, IsRightAndTheSameBitsForAnyRowsAndTiles) {
  for (const Shape& shape : kShapes) {
    const W8Problem problem{GetParam(), kManyRows, shape.n, shape.k};
    const W8Operands operands({.problem = problem,
                               .least_scale = 0.01f,
                               .greatest_scale = 10,
                               .seed = static_cast<uint64_t>(shape.n)});
    const W8Reference reference = W8Reference::Make(operands);
    for (const std::span<const W8Tile> tiles :
         {W8Tiles(GetParam()), std::span<const W8Tile>(kW8MmaTiles)}) {
      const std::vector<LaunchSpec> specs =
          W8Runner::Get().Specs(problem, tiles);
      if (specs.empty()) continue;  // another device's
      const W8Output all =
          W8Runner::Get().Run({.args = operands.Args(kManyRows)}, specs[0]);
      ASSERT_EQ(all.problem, "") << problem.ToString();
      ASSERT_EQ(Compare(all.y, reference, GetParam()), "")
          << problem.ToString() << " " << specs[0].ToString();
      for (const int64_t m : AllRows()) {
        for (const LaunchSpec& spec : specs) {
          const W8Output output = W8Runner::Get().Run(
              {.args = operands.Args(m), .aligned = m % 2 == 0}, spec);
          ASSERT_EQ(output.problem, "")
              << problem.ToString() << " m=" << m << " " << spec.ToString();
          ASSERT_EQ(std::memcmp(output.y.data(), all.y.data(), output.y.size()),
                    0)
              << problem.ToString() << " m=" << m << " " << spec.ToString();
        }
      }
    }
  }
}

// Of integers the tiles for Hopper and for every device make the same bits.
TEST_P(W8Test, IntegersAreTheSameBitsOnEveryDevice) {
  if (!IsInt8(GetParam())) {
    GTEST_SKIP() << "INT8 only";
  }
  const W8Problem problem{GetParam(), kManyRows, 320, 4'304};
  const W8Operands operands({.problem = problem,
                             .least_scale = 0.01f,
                             .greatest_scale = 10,
                             .zeros = true});
  const W8Job job{.args = operands.Args(problem.m)};
  const std::vector<LaunchSpec> specs = W8Runner::Get().Specs(problem);
  const W8Output first = W8Runner::Get().Run(job, specs[0]);
  for (const LaunchSpec& spec : specs) {
    EXPECT_EQ(W8Runner::Get().Run(job, spec).y, first.y) << spec.ToString();
  }
}

// Codes whose sums no accumulator rounds: every product must be there once.
TEST_P(W8Test, SmallNumbersAreExact) {
  for (const Shape& shape : kShapes) {
    const W8Problem problem{GetParam(), kManyRows, shape.n, shape.k};
    const W8Operands operands({.problem = problem, .codes = W8Codes::kSparse});
    const W8Reference reference = W8Reference::Make(operands);
    for (const LaunchSpec& spec : W8Runner::Get().Specs(problem)) {
      const W8Output output =
          W8Runner::Get().Run({.args = operands.Args(kManyRows)}, spec);
      for (size_t i = 0; i < reference.dots.size(); ++i) {
        ASSERT_EQ(Decode(DType::kF32, output.y.data() + i * 4),
                  reference.dots[i].value)
            << problem.ToString() << " " << spec.ToString() << " at " << i;
      }
    }
  }
}

TEST_P(W8Test, GivesTheSameBitsAHundredTimes) {
  const W8Problem problem{GetParam(), 200, 1'440, 4'304};
  const W8Operands operands({.problem = problem});
  for (const LaunchSpec& spec : W8Runner::Get().Specs(problem)) {
    const W8Job job{.args = operands.Args(problem.m)};
    const W8Output first = W8Runner::Get().Run(job, spec);
    for (int i = 1; i < 100; ++i) {
      ASSERT_EQ(W8Runner::Get().Run(job, spec).y, first.y)
          << spec.ToString() << " run " << i;
    }
  }
}

TEST_P(W8Test, NoRowsAreANoOp) {
  const W8Problem problem{GetParam(), 1, 64, 256};
  const W8Operands operands({.problem = problem});
  for (const LaunchSpec& spec : W8Runner::Get().Specs(problem)) {
    EXPECT_EQ(W8Runner::Get().Run({.args = operands.Args(0)}, spec).problem,
              "");
  }
}

// More tiles than CTAs, so that each walks over several, by ping-pong too.
TEST_P(W8Test, WalksOverManyTiles) {
  const W8Problem problem{GetParam(), 3'000, 2'100, 1'040};
  const W8Operands operands({.problem = problem, .codes = W8Codes::kSparse});
  const std::vector<LaunchSpec> specs = W8Runner::Get().Specs(problem);
  const W8Job job{.args = operands.Args(problem.m)};
  const W8Output first = W8Runner::Get().Run(job, specs[0]);
  const W8Reference reference = W8Reference::Make(operands);
  for (size_t i = 0; i < reference.dots.size(); ++i) {
    ASSERT_EQ(Decode(DType::kF32, first.y.data() + i * 4),
              reference.dots[i].value)
        << i;
  }
  for (const LaunchSpec& spec : specs) {
    const W8Output output = W8Runner::Get().Run(job, spec);
    EXPECT_EQ(output.problem, "") << spec.ToString();
    EXPECT_EQ(output.y, first.y) << spec.ToString();
  }
}

// The same in BF16, which is stored while the next tile is multiplied: under
// some of its steps, or at once where those are few. The last columns end
// within a tile.
TEST_P(W8Test, WalksOverManyTilesOfBf16) {
  for (const int64_t k : {100, 640, 1'040}) {
    const W8Problem problem{GetParam(), 3'000, 2'104, k};
    const W8Operands operands({.problem = problem, .codes = W8Codes::kSparse});
    const std::vector<LaunchSpec> specs = W8Runner::Get().Specs(problem);
    W8Job job{.args = operands.Args(problem.m)};
    const W8Output numbers = W8Runner::Get().Run(job, specs[0]);
    std::vector<float> values(problem.m * problem.n);
    std::memcpy(values.data(), numbers.y.data(), numbers.y.size());
    const std::vector<std::byte> rounded = Encode(DType::kBF16, values);
    job.args.y_dtype = DType::kBF16;
    for (const LaunchSpec& spec : specs) {
      const W8Output output = W8Runner::Get().Run(job, spec);
      EXPECT_EQ(output.problem, "") << problem.ToString() << spec.ToString();
      EXPECT_EQ(output.y, rounded) << problem.ToString() << spec.ToString();
    }
  }
}

std::string KindName(const ::testing::TestParamInfo<W8Kind>& info) {
  return std::string(kernels::cuda::W8KindName(info.param));
}
INSTANTIATE_TEST_SUITE_P(Kinds, W8Test,
                         ::testing::ValuesIn(kernels::cuda::kW8Kinds),
                         KindName);

}  // namespace
}  // namespace nibble::test
