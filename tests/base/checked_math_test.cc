#include "base/checked_math.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(CheckedMathTest, NoticesOverflow) {
  EXPECT_EQ(CheckedMul<uint64_t>(1ull << 32, (1ull << 32) - 1),
            (1ull << 32) * ((1ull << 32) - 1));
  EXPECT_EQ(CheckedMul<uint64_t>(1ull << 42, 1ull << 22), std::nullopt);
  EXPECT_EQ(CheckedAdd<uint64_t>(UINT64_MAX, 1), std::nullopt);
  EXPECT_EQ(CheckedAdd<int32_t>(INT32_MAX, 1), std::nullopt);
  EXPECT_EQ(CheckedRoundUp<uint64_t>(UINT64_MAX - 3, 32), std::nullopt);
  EXPECT_EQ(CheckedRoundUp<uint64_t>(33, 32), 64u);
  EXPECT_EQ(CheckedRoundUp<uint64_t>(64, 32), 64u);
}

TEST(CheckedMathTest, DividesUp) {
  EXPECT_EQ(DivideUp(0, 4), 0);
  EXPECT_EQ(DivideUp(1, 4), 1);
  EXPECT_EQ(DivideUp(8, 4), 2);
  EXPECT_EQ(RoundUp(9, 4), 12);
  EXPECT_EQ(DivideUp<int64_t>(INT64_MAX, 2), INT64_MAX / 2 + 1);
}

}  // namespace
}  // namespace nibble
