#include "kernels/reference/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "base/check.h"
#include "kernels/reference/minifloat.h"

namespace nibble::kernels::reference {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Adding it to a number of less than 2^22 leaves no bits for a fraction.
constexpr float kRound = 12582912.0f;  // 1.5 * 2^23

// How far a group reaches from zero to either side; NaN if it holds a NaN.
struct Extent {
  float above = 0;
  float below = 0;

  float Magnitude() const {
    return std::isnan(above) ? above : std::max(above, below);
  }
};

Extent ExtentOf(std::span<const float> x) {
  Extent extent;
  for (const float value : x) {
    if (std::isnan(value)) return {kNan, kNan};
    extent.above = std::max(extent.above, value);
    extent.below = std::max(extent.below, -value);
  }
  return extent;
}

uint8_t FloatToFp8(float value, Fp8 format) {
  return format == Fp8::kE4m3 ? FloatToE4m3(value) : FloatToE5m2(value);
}

// Codes of x * inverse.
void EncodeFp8(std::span<const float> x, Fp8 format, float inverse,
               uint8_t* codes) {
  for (size_t i = 0; i < x.size(); ++i) {
    codes[i] = FloatToFp8(x[i] * inverse, format);
  }
}

}  // namespace

Int8Scale QuantizeInt8(std::span<const float> x, Int8Range range,
                       int8_t* codes) {
  const Extent extent = ExtentOf(x);
  const bool symmetric = range == Int8Range::kSymmetric;
  const float width =
      symmetric ? extent.Magnitude() : extent.above + extent.below;
  if (!std::isfinite(width)) {
    std::fill_n(codes, x.size(), int8_t{0});
    return {kNan, 0};
  }
  const float steps = symmetric ? 127.0f : 254.0f;
  const float counted = std::max(width, kLeastMax);
  const float inverse = steps / counted;
  int32_t zero = 0;
  if (!symmetric && width > 0) {
    zero = static_cast<int32_t>(std::floor(extent.below * inverse)) - 127;
  }
  for (size_t i = 0; i < x.size(); ++i) {
    const float rounded =
        std::fma(x[i], inverse, kRound + static_cast<float>(zero)) - kRound;
    NIBBLE_DCHECK(rounded >= -128 && rounded <= 127);
    codes[i] = static_cast<int8_t>(rounded);
  }
  return {counted / steps, zero};
}

float QuantizeFp8(std::span<const float> x, Fp8 format, uint8_t* codes) {
  const float magnitude = ExtentOf(x).Magnitude();
  const float counted =
      std::isfinite(magnitude) ? std::max(magnitude, kLeastMax) : kNan;
  EncodeFp8(x, format, Greatest(format) / counted, codes);
  return counted / Greatest(format);
}

void QuantizeFp8By(std::span<const float> x, Fp8 format, float scale,
                   uint8_t* codes) {
  const bool finite = std::isfinite(ExtentOf(x).Magnitude());
  EncodeFp8(x, format, finite ? 1 / scale : kNan, codes);
}

uint8_t QuantizeMxFp8(std::span<const float> x, Fp8 format, uint8_t* codes) {
  constexpr int kBias = 127;
  const float magnitude = ExtentOf(x).Magnitude();
  if (!std::isfinite(magnitude)) {
    EncodeFp8(x, format, kNan, codes);
    return 255;
  }
  const int exponent =
      std::ilogb(std::max(magnitude, kLeastMax)) - GreatestExponent(format);
  EncodeFp8(x, format, std::ldexp(1.0f, -exponent), codes);
  return static_cast<uint8_t>(exponent + kBias);
}

float QuantizeQ8(std::span<const float> x, int8_t* codes, float* sums) {
  const float scale = QuantizeInt8(x, Int8Range::kSymmetric, codes).scale;
  for (size_t begin = 0; begin < x.size(); begin += kSumBlock) {
    const size_t end = std::min(x.size(), begin + kSumBlock);
    int32_t sum = 0;
    for (size_t i = begin; i < end; ++i) sum += codes[i];
    sums[begin / kSumBlock] = scale * static_cast<float>(sum);
  }
  return scale;
}

float Fp8ToFloat(uint8_t code, Fp8 format) {
  return format == Fp8::kE4m3 ? E4m3ToFloat(code) : E5m2ToFloat(code);
}

void Losses::operator+=(const Losses& other) {
  values += other.values;
  clipped += other.clipped;
  flushed += other.flushed;
}

Losses CountLosses(std::span<const float> x, Fp8 format, float scale) {
  // Half a step beyond the greatest number: 464 and 61440.
  const float limit =
      Greatest(format) + std::ldexp(1.0f, GreatestExponent(format) -
                                              (format == Fp8::kE4m3 ? 4 : 3));
  const float inverse = 1 / scale;
  Losses losses;
  losses.values = static_cast<int64_t>(x.size());
  for (const float value : x) {
    const float scaled = value * inverse;
    if (std::fabs(scaled) >= limit) ++losses.clipped;
    const bool zero = Fp8ToFloat(FloatToFp8(scaled, format), format) == 0;
    if (value != 0 && zero) ++losses.flushed;
  }
  return losses;
}

float NormProducts(const NormRow& row, float* products) {
  double squares = 0;
  for (size_t i = 0; i < row.x.size(); ++i) {
    squares += static_cast<double>(row.x[i]) * row.x[i];
    products[i] = row.x[i] * row.weight[i];
  }
  if (!std::isfinite(squares)) return kNan;
  const double mean = squares / static_cast<double>(row.x.size());
  return static_cast<float>(1 / std::sqrt(mean + row.eps));
}

}  // namespace nibble::kernels::reference
