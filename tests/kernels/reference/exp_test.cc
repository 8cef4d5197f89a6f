#include "kernels/reference/exp.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace nibble::kernels::reference {
namespace {

TEST(ExpNonPositive, IsOneAtZeroAndZeroFarBelow) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(ExpNonPositive(0.0f), 1.0f);
  EXPECT_EQ(ExpNonPositive(-0.0f), 1.0f);
  EXPECT_EQ(ExpNonPositive(-kInfinity), 0.0f);
  EXPECT_EQ(ExpNonPositive(-std::numeric_limits<float>::max()), 0.0f);
  EXPECT_EQ(ExpNonPositive(std::nextafter(kExpFloor, -kInfinity)), 0.0f);
  EXPECT_TRUE(std::isnormal(ExpNonPositive(kExpFloor)));
}

TEST(ExpNonPositive, IsWithinItsErrorEverywhere) {
  // Every 1,000th float from -0 down to the floor.
  const auto floor_bits = std::bit_cast<uint32_t>(kExpFloor);
  for (uint32_t bits = 0x80000000; bits <= floor_bits; bits += 1000) {
    const auto x = std::bit_cast<float>(bits);
    const double exact = std::exp(static_cast<double>(x));
    ASSERT_LE(std::fabs(ExpNonPositive(x) - exact), 2e-7 * exact) << x;
    ASSERT_LE(ExpNonPositive(x), 1.0f) << x;
  }
}

}  // namespace
}  // namespace nibble::kernels::reference
