// The small floating-point numbers of the 4-bit and 8-bit formats, to FP32
// (exactly) and, the 8-bit ones, back. Written from the OCP Microscaling
// Formats (MX) Specification v1.0 (section 5.3, E2M1; section 5.4, E8M0) and
// the OCP 8-bit Floating Point Specification (OFP8) v1.0 (E4M3, E5M2).
#pragma once

#include <array>
#include <bit>
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

// Sign, five bits of exponent with bias 15, two of mantissa; the greatest
// number is 57344, above it infinity and NaN as in IEEE formats.
inline float E5m2ToFloat(uint8_t bits) {
  const int exponent = bits >> 2 & 31;
  const int mantissa = bits & 3;
  float magnitude = exponent == 0 ? std::ldexp(mantissa, -16)
                                  : std::ldexp(4 + mantissa, exponent - 17);
  if (exponent == 31) {
    magnitude = mantissa == 0 ? std::numeric_limits<float>::infinity()
                              : std::numeric_limits<float>::quiet_NaN();
  }
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

namespace internal {

// To nearest, ties to even. Beyond the greatest number, infinity included, it
// is that number; NaN is 0x7f. Only single FP32 and integer operations, so
// that device code may call it.
template <int kMantissaBits, int kBias>
constexpr uint8_t FloatToFp8(float value, float greatest, uint8_t code) {
  constexpr int kDropped = 23 - kMantissaBits;
  constexpr uint32_t kLeastNormal = (128 - kBias) << 23;
  // A float whose last bit is worth what a subnormal number's last bit is.
  constexpr uint32_t kAnchor = kLeastNormal + (kDropped << 23);
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7f;
  uint32_t result;
  if (magnitude >= std::bit_cast<uint32_t>(greatest)) {
    result = code;
  } else if (magnitude < kLeastNormal) {
    const float rounded =
        std::bit_cast<float>(magnitude) + std::bit_cast<float>(kAnchor);
    result = std::bit_cast<uint32_t>(rounded) - kAnchor;
  } else {
    const uint32_t rounded =
        magnitude + ((1u << (kDropped - 1)) - 1) + (magnitude >> kDropped & 1);
    result = (rounded >> kDropped) - ((127 - kBias) << kMantissaBits);
  }
  return static_cast<uint8_t>((bits >> 24 & 0x80) | result);
}

}  // namespace internal

// To nearest, ties to even, saturating at +-448, infinity included, as PTX's
// cvt.rn.satfinite does; NaN is 0x7f.
constexpr uint8_t FloatToE4m3(float value) {
  return internal::FloatToFp8<3, 7>(value, 448.0f, 0x7e);
}

// The same, saturating at +-57344.
constexpr uint8_t FloatToE5m2(float value) {
  return internal::FloatToFp8<2, 15>(value, 57344.0f, 0x7b);
}

}  // namespace nibble::kernels::reference
