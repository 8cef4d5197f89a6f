// FP8 numbers: every code there and back, and every tie.
#include "kernels/reference/minifloat.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "tests/support/minifloat.h"
#include "tests/support/random.h"

namespace nibble::kernels::reference {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One format with its conversions. By value.
struct Format {
  const char* name;
  float (*to_float)(uint8_t);
  uint8_t (*from_float)(float);
  uint8_t greatest;  // its code
  test::Minifloat rounding;
};

class Fp8Test : public testing::TestWithParam<Format> {};

INSTANTIATE_TEST_SUITE_P(
    Formats, Fp8Test,
    testing::Values(Format{"E4m3", E4m3ToFloat, FloatToE4m3, 0x7e, test::kE4m3},
                    Format{"E5m2", E5m2ToFloat, FloatToE5m2, 0x7b,
                           test::kE5m2}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(Fp8Test, EveryFiniteCodeComesBack) {
  const Format& format = GetParam();
  EXPECT_EQ(format.to_float(format.greatest), format.rounding.greatest);
  for (int code = 0; code <= format.greatest; ++code) {
    const float value = format.to_float(static_cast<uint8_t>(code));
    EXPECT_EQ(format.from_float(value), code);
    EXPECT_EQ(format.from_float(-value), code | 0x80);
    EXPECT_EQ(format.to_float(static_cast<uint8_t>(code | 0x80)), -value);
    EXPECT_TRUE(
        std::signbit(format.to_float(static_cast<uint8_t>(code | 0x80))));
  }
}

TEST_P(Fp8Test, RoundsToTheNearestTiesToEven) {
  const Format& format = GetParam();
  for (int code = 0; code < format.greatest; ++code) {
    const float low = format.to_float(static_cast<uint8_t>(code));
    const float high = format.to_float(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;  // exact: one bit more
    const int even = code % 2 == 0 ? code : code + 1;
    EXPECT_EQ(format.from_float(middle), even);
    EXPECT_EQ(format.from_float(-middle), even | 0x80);
    EXPECT_EQ(format.from_float(std::nextafter(middle, 0.0f)), code);
    EXPECT_EQ(format.from_float(std::nextafter(middle, kInfinity)), code + 1);
  }
}

TEST_P(Fp8Test, SaturatesAndKeepsNan) {
  const Format& format = GetParam();
  const float greatest = format.rounding.greatest;
  for (const float value :
       {std::nextafter(greatest, kInfinity), greatest * 1.1f, greatest * 2,
        std::numeric_limits<float>::max(), kInfinity}) {
    EXPECT_EQ(format.from_float(value), format.greatest) << value;
    EXPECT_EQ(format.from_float(-value), format.greatest | 0x80) << value;
  }
  EXPECT_EQ(format.from_float(kNan), 0x7f);
  EXPECT_EQ(format.from_float(-kNan), 0x7f);
  EXPECT_TRUE(std::isnan(format.to_float(0x7f)));
  EXPECT_TRUE(std::isnan(format.to_float(0xff)));
}

TEST_P(Fp8Test, AgreesWithArithmeticOnRandomNumbers) {
  const Format& format = GetParam();
  test::Random random(7);
  for (int i = 0; i < 200000; ++i) {
    const float value = random.Normal() *
                        std::ldexp(1.0f, static_cast<int>(random.Int(-24, 20)));
    ASSERT_EQ(format.to_float(format.from_float(value)),
              format.rounding.Round(value))
        << value;
  }
}

TEST(E5m2, HasInfinity) {
  EXPECT_EQ(E5m2ToFloat(0x7c), kInfinity);
  EXPECT_EQ(E5m2ToFloat(0xfc), -kInfinity);
  EXPECT_TRUE(std::isnan(E5m2ToFloat(0x7d)));
}

static_assert(FloatToE4m3(1.0f) == 0x38 && FloatToE5m2(-1.0f) == 0xbc,
              "usable in constant expressions, so in device code");

}  // namespace
}  // namespace nibble::kernels::reference
