// The small floating-point numbers of the 4-bit formats, to FP32, exactly.
// Written from the OCP Microscaling Formats (MX) Specification v1.0 (section
// 5.3, E2M1; section 5.4, E8M0) and the OCP 8-bit Floating Point Specification
// (OFP8) v1.0 (E4M3).
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

namespace nibble::kernels::reference {

// Sign, two bits of exponent with bias 1, one of mantissa; no infinity or NaN.
inline float E2m1ToFloat(int code) {
  constexpr std::array<float, 8> kMagnitudes = {0.0f, 0.5f, 1.0f, 1.5f,
                                                2.0f, 3.0f, 4.0f, 6.0f};
  const float magnitude = kMagnitudes[code & 7];
  return (code & 8) != 0 ? -magnitude : magnitude;
}

// A power of two with bias 127; 255 is NaN. 0 is subnormal in FP32.
inline float E8m0ToFloat(uint8_t exponent) {
  if (exponent == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp(1.0f, exponent - 127);
}

// Sign, four bits of exponent with bias 7, three of mantissa; no infinity, all
// ones are NaN, the greatest number is 448.
inline float E4m3ToFloat(uint8_t bits) {
  const int exponent = bits >> 3 & 15;
  const int mantissa = bits & 7;
  float magnitude = exponent == 0 ? std::ldexp(mantissa, -9)
                                  : std::ldexp(8 + mantissa, exponent - 10);
  if ((bits & 0x7f) == 0x7f)
    magnitude = std::numeric_limits<float>::quiet_NaN();
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

}  // namespace nibble::kernels::reference
