// Rounding to the small floating-point formats of the OCP specifications
// (OFP8 v1.0, Microscaling Formats v1.0): to nearest, ties to even, saturating.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace nibble::test {

// One format. By value.
struct Minifloat {
  int mantissa_bits = 0;   // without the hidden one
  int least_exponent = 0;  // of the normal numbers
  float greatest = 0;

  float Round(float value) const {
    const float magnitude = std::fabs(value);
    if (magnitude == 0) return value;
    const int exponent = std::max(std::ilogb(magnitude), least_exponent);
    const float step = std::ldexp(1.0f, exponent - mantissa_bits);
    // nearbyint rounds ties to even, in the default mode.
    const float rounded = std::nearbyint(magnitude / step) * step;
    return std::copysign(std::min(rounded, greatest), value);
  }
};

inline constexpr Minifloat kE2m1 = {1, 0, 6.0f};
inline constexpr Minifloat kE2m3 = {3, 0, 7.5f};
inline constexpr Minifloat kE3m2 = {2, -2, 28.0f};
inline constexpr Minifloat kE4m3 = {3, -6, 448.0f};
inline constexpr Minifloat kE5m2 = {2, -14, 57344.0f};

// The code of the E2M1 number nearest to `value`.
inline int E2m1Code(float value) {
  const float magnitude = std::fabs(kE2m1.Round(value));
  // 0 0.5 1 1.5 are halves; 2 3 whole; 4 6 even.
  const float index = magnitude < 2   ? magnitude * 2
                      : magnitude < 4 ? magnitude + 2
                                      : magnitude / 2 + 4;
  return static_cast<int>(index) | (std::signbit(value) ? 8 : 0);
}

// The bits of the E4M3 number nearest to `value`.
inline uint8_t E4m3Bits(float value) {
  const float magnitude = std::fabs(kE4m3.Round(value));
  const int sign = std::signbit(value) ? 0x80 : 0;
  if (magnitude < 0x1p-6f) {
    return static_cast<uint8_t>(sign | static_cast<int>(magnitude * 0x1p9f));
  }
  const int exponent = std::ilogb(magnitude);
  const auto mantissa =
      static_cast<int>(std::ldexp(magnitude, 3 - exponent)) & 7;
  return static_cast<uint8_t>(sign | (exponent + 7) << 3 | mantissa);
}

}  // namespace nibble::test
