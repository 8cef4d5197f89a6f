#include "kernels/reference/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace nibble::kernels::reference {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The value of a finite half by its definition (IEEE 754, 3.4).
double ValueOf(uint16_t half) {
  const int exponent = half >> 10 & 31;
  const int fraction = half & 0x3ff;
  const double magnitude = exponent == 0
                               ? std::ldexp(fraction, -24)
                               : std::ldexp(1024 + fraction, exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

bool IsNan(uint16_t half) { return (half & 0x7fff) > 0x7c00; }

TEST(Half, WidensEveryValueAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = HalfToFloat(half);
    if (IsNan(half)) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(FloatToHalf(value), half | 0x200);
      continue;
    }
    if ((half & 0x7fff) == 0x7c00) {
      EXPECT_EQ(value, half == 0x7c00 ? kInfinity : -kInfinity);
    } else {
      EXPECT_EQ(value, ValueOf(half));
      EXPECT_EQ(std::signbit(value), (half & 0x8000) != 0);
    }
    ASSERT_EQ(FloatToHalf(value), half);
  }
}

TEST(Half, NarrowsToTheNearestTiesToEven) {
  for (uint16_t half = 0; half < 0x7bff; ++half) {
    const auto next = static_cast<uint16_t>(half + 1);
    // Exact: eleven bits and one more.
    const auto middle = static_cast<float>((ValueOf(half) + ValueOf(next)) / 2);
    const uint16_t even = (half & 1) == 0 ? half : next;
    ASSERT_EQ(FloatToHalf(middle), even);
    ASSERT_EQ(FloatToHalf(-middle), even | 0x8000);
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, 0.0f)), half);
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, kInfinity)), next);
  }
}

TEST(Half, NarrowsExtremes) {
  EXPECT_EQ(FloatToHalf(65504.0f), 0x7bff);
  EXPECT_EQ(FloatToHalf(std::nextafter(65520.0f, 0.0f)), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToHalf(-3e38f), 0xfc00);
  EXPECT_EQ(FloatToHalf(-kInfinity), 0xfc00);
  EXPECT_EQ(FloatToHalf(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(FloatToHalf(-0.0f), 0x8000);
}

TEST(BFloat16, WidensEveryValueAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto value = static_cast<uint16_t>(bits);
    const float wide = BFloat16ToFloat(value);
    ASSERT_EQ(std::bit_cast<uint32_t>(wide), bits << 16);
    const bool nan = (value & 0x7fff) > 0x7f80;
    ASSERT_EQ(FloatToBFloat16(wide), nan ? value | 0x40 : value);
  }
}

TEST(BFloat16, NarrowsToTheNearestTiesToEven) {
  for (uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const auto middle = std::bit_cast<float>(bits << 16 | 0x8000);
    const uint32_t even = bits + (bits & 1);
    ASSERT_EQ(FloatToBFloat16(middle), even);
    ASSERT_EQ(FloatToBFloat16(-middle), even | 0x8000);
    ASSERT_EQ(FloatToBFloat16(std::bit_cast<float>(bits << 16 | 0x7fff)), bits);
    ASSERT_EQ(FloatToBFloat16(std::bit_cast<float>(bits << 16 | 0x8001)),
              bits + 1);
  }
}

}  // namespace
}  // namespace nibble::kernels::reference
