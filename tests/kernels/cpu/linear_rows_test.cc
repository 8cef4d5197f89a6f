// A row's result is the same bits whatever surrounds it: other rows, their
// number, the kernel, the threads, the instruction set.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/dot.h"
#include "tests/kernels/cpu/cpu_test_util.h"

namespace nibble::test {
namespace {

using kernels::QuantFormat;
using kernels::cpu::AvailableTargets;
using kernels::cpu::CpuTarget;

constexpr int64_t kRows = 140;
constexpr int64_t kColumns = 72;

class LinearRowsTest : public ::testing::TestWithParam<kernels::FormatInfo> {
 protected:
  LinearRowsTest()
      : k_(FitK(GetParam().format, 288)),
        weight_(RandomWeight(GetParam().format, kColumns, k_, random_)),
        x_(Encode(random_.Normals(kRows * k_), kRows, k_)),
        alone_(kRows, kColumns) {
    const auto backend = MakeBackend(1);
    const auto op = MakeOp(*backend, weight_);
    for (int64_t row = 0; row < kRows; ++row) {
      op->Run(
          {.x = x_.get(), .row_begin = row, .y = alone_.View().Rows(row, 1)});
    }
  }

  void CheckRows(const kernels::LinearOp& op, int64_t begin, int64_t rows) {
    GuardedMatrix y(rows, kColumns);
    op.Run({.x = x_.get(), .row_begin = begin, .y = y.View()});
    for (int64_t row = 0; row < rows; ++row) {
      ASSERT_TRUE(SameBits(y.Row(row), alone_.Row(begin + row)))
          << "row " << row << " of " << rows << " from " << begin;
    }
    ASSERT_TRUE(y.GuardsAreWhole());
  }

  Random random_{11};
  int64_t k_;
  TestWeight weight_;
  std::unique_ptr<kernels::Activations> x_;
  GuardedMatrix alone_;  // each row computed by itself
};

INSTANTIATE_TEST_SUITE_P(All, LinearRowsTest,
                         ::testing::ValuesIn(kernels::kFormatTable),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

TEST_P(LinearRowsTest, AnyNumberOfRowsFromAnyRowOn) {
  const auto backend = MakeBackend(2);
  const auto op = MakeOp(*backend, weight_);
  for (int64_t rows = 1; rows <= 33; ++rows) {
    for (const int64_t begin : {0, 1, 2, 3, 6}) CheckRows(*op, begin, rows);
  }
  for (const int64_t rows : {63, 64, 65, 127, 128, 129}) {
    for (const int64_t begin : {0, 1, 7, 11}) CheckRows(*op, begin, rows);
  }
}

TEST_P(LinearRowsTest, AnyNumberOfThreads) {
  for (const int threads : {1, 2, 3, 4}) {
    const auto backend = MakeBackend(threads);
    const auto op = MakeOp(*backend, weight_);
    for (const int64_t rows : {1, 2, 7, 16, 17, 129}) CheckRows(*op, 0, rows);
  }
}

TEST_P(LinearRowsTest, AnyInstructionSet) {
  for (const CpuTarget target : AvailableTargets()) {
    const auto backend = MakeBackend(2, target);
    const auto op = MakeOp(*backend, weight_);
    for (const int64_t rows : {1, 2, 3, 4, 6, 11, 16, 37}) {
      for (const int64_t begin : {0, 1, 2}) CheckRows(*op, begin, rows);
    }
  }
}

// Both ways to take a tail cover every row once, and never leave a quad in two
// places of one kernel call.
TEST(RowsAtOnceTest, TakesEveryRowOnce) {
  using kernels::cpu::RowTail;
  for (const RowTail tail : {RowTail::kPadded, RowTail::kApart}) {
    for (int64_t first = 0; first < kernels::cpu::kQuad; ++first) {
      for (int64_t rows = 1; rows <= 40; ++rows) {
        const int64_t end = first + rows;
        int64_t row = first;
        while (row < end) {
          const int lane = static_cast<int>(row % kernels::cpu::kQuad);
          const int count = kernels::cpu::RowsAtOnce(lane, end - row, tail);
          ASSERT_GE(count, 1);
          ASSERT_LE(lane + count, kernels::cpu::kMaxDotRows);
          ASSERT_LT(kernels::cpu::VariantFor(lane, count),
                    kernels::cpu::kDotVariants);
          row += count;
        }
        ASSERT_EQ(row, end);
      }
    }
  }
}

TEST(RowsAtOnceTest, TakesTailsOfOneOrTwoApart) {
  using kernels::cpu::RowsAtOnce;
  using kernels::cpu::RowTail;
  EXPECT_EQ(RowsAtOnce(0, 5, RowTail::kPadded), 5);
  EXPECT_EQ(RowsAtOnce(0, 5, RowTail::kApart), 4);
  EXPECT_EQ(RowsAtOnce(0, 14, RowTail::kApart), 12);
  EXPECT_EQ(RowsAtOnce(0, 7, RowTail::kApart), 7);
  EXPECT_EQ(RowsAtOnce(0, 2, RowTail::kApart), 2);
  EXPECT_EQ(RowsAtOnce(1, 4, RowTail::kApart), 3);
}

TEST(LinearPlanTest, MeasuresAShapeOnce) {
  Random random(5);
  const auto backend = MakeBackend(1);
  const TestWeight weight = RandomWeight(QuantFormat::kQ4_0, 48, 64, random);
  const auto first = MakeOp(*backend, weight);
  const auto second = MakeOp(*backend, weight);
  EXPECT_EQ(first->plan().ToString(), second->plan().ToString());
  for (const int64_t rows : {1, 5, 9, 16}) {
    const std::string variant = first->plan().ForRows(rows).variant;
    EXPECT_TRUE(variant == "apart" || variant == "padded") << variant;
  }
  const auto floats =
      MakeOp(*backend, RandomWeight(QuantFormat::kF16, 48, 64, random));
  EXPECT_EQ(floats->plan().ForRows(5).variant, "");
}

}  // namespace
}  // namespace nibble::test
