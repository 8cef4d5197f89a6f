// 8-bit encodings of activations: what their quantizers, the scalar reference
// and the matrix multiplications that read them agree on.
//
// A group of values that share a scale (a row, a part of one, a tensor) is
// rounded to nearest, ties to even:
//
//   INT8       x = scale * (code - zero), code in [-127, 127], zero = 0.
//              scale = max |x| / 127. Asymmetric: scale = (greatest - least) /
//              254, both counted with 0, code in [-128, 127], zero in [-127,
//              127]
//   FP8        x = scale * code; scale = max |x| / greatest number of the
//              format, which is where codes saturate
//   MXFP8      the same in blocks of 32, the scale a power of two that is
//              stored as its exponent + 127 (E8M0): the greatest one <=
//              max |x|, divided by that of the format's numbers (OCP
//              Microscaling Formats v1.0, 6.3)
//   Q8         INT8 in groups of 32 or 256, and for each 32 codes scale * (sum
//              of codes), which weights with minimums need
//
// A range below kLeastMax counts as kLeastMax, so a group of zeros has codes
// of zero and a normal scale. A group with a NaN, an infinity or an infinite
// range has a scale of NaN (E8M0: 255), codes that are NaN (FP8) or zero
// (INT8), and zero = 0: whatever is multiplied with it becomes NaN.
#pragma once

#include <cstdint>

namespace nibble::kernels {

enum class Fp8 : uint8_t { kE4m3, kE5m2 };

// The greatest finite number.
constexpr float Greatest(Fp8 format) {
  return format == Fp8::kE4m3 ? 448.0f : 57344.0f;
}
// The exponent of the greatest power of two.
constexpr int GreatestExponent(Fp8 format) {
  return format == Fp8::kE4m3 ? 8 : 15;
}

enum class Int8Range : uint8_t { kSymmetric, kAsymmetric };

// Far below any activation that matters, and such that neither a scale nor its
// reciprocal leaves FP32's normal numbers.
inline constexpr float kLeastMax = 0x1p-100f;

inline constexpr int64_t kScaleBlock = 128;  // FP8 "1x128": DeepSeek-V3's
inline constexpr int64_t kMxBlock = 32;
inline constexpr int64_t kSumBlock = 32;  // Q8: codes of a sum

// Floats between one group of columns' scales [m] and the next.
constexpr int64_t BlockScalePitch(int64_t m) { return (m + 3) / 4 * 4; }

}  // namespace nibble::kernels
