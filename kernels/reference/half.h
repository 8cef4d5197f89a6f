// Scalar conversions between FP32 and the two 16-bit formats, on raw bits:
// IEEE 754 binary16 and bfloat16 (the upper half of a binary32). Narrowing
// rounds to nearest, ties to even; a NaN stays a NaN, quieted, with the upper
// bits of its payload, as the F16C instructions do it.
#pragma once

#include <bit>
#include <cstdint>

namespace nibble::kernels::reference {

inline float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  if (magnitude < 0x400) {  // subnormal: a multiple of 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  if (magnitude > 0x7c00) {
    return std::bit_cast<float>(sign | 0x7fc00000 | (magnitude & 0x3ff) << 13);
  }
  if (magnitude == 0x7c00) return std::bit_cast<float>(sign | 0x7f800000);
  constexpr uint32_t kBiasShift = (127 - 15) << 23;
  return std::bit_cast<float>(sign | ((magnitude << 13) + kBiasShift));
}

inline uint16_t FloatToHalf(float value) {
  constexpr uint32_t kInfinity = 0x7f800000;
  constexpr uint32_t kOverflow = 0x477ff000;     // 65520 rounds up to infinity
  constexpr uint32_t kLeastNormal = 0x38800000;  // 2^-14
  constexpr uint32_t kBiasShift = (127 - 15) << 23;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t half;
  if (magnitude > kInfinity) {
    half = 0x7e00 | (magnitude >> 13 & 0x3ff);
  } else if (magnitude >= kOverflow) {
    half = 0x7c00;
  } else if (magnitude < kLeastNormal) {
    // The last bit of a float in [0.5, 1) is worth 2^-24, like that of a
    // subnormal half, so the addition does the rounding.
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    half = std::bit_cast<uint32_t>(rounded) - std::bit_cast<uint32_t>(0.5f);
  } else {
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    half = (rounded - kBiasShift) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

inline float BFloat16ToFloat(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

inline uint16_t FloatToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) {
    return static_cast<uint16_t>(bits >> 16 | 0x40);
  }
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace nibble::kernels::reference
