// The 8-bit encodings of activation_codes.h in scalar code: what every
// quantizer is tested against, bit for bit. A call takes one group of values
// that share a scale.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/activation_codes.h"

namespace nibble::kernels::reference {

struct Int8Scale {
  float scale = 0;
  int32_t zero = 0;
};
// codes [x.size()].
Int8Scale QuantizeInt8(std::span<const float> x, Int8Range range,
                       int8_t* codes);

// The scale of x; codes [x.size()].
float QuantizeFp8(std::span<const float> x, Fp8 format, uint8_t* codes);

// By a scale from elsewhere (positive, finite). Beyond scale * Greatest codes
// saturate; a group with a NaN or an infinity has codes of NaN.
void QuantizeFp8By(std::span<const float> x, Fp8 format, float scale,
                   uint8_t* codes);

// One block of up to kMxBlock values: E8M0's byte.
uint8_t QuantizeMxFp8(std::span<const float> x, Fp8 format, uint8_t* codes);

// One group of up to 32 or 256 values: its scale; sums [x.size() / 32, rounded
// up], each scale * (sum of 32 codes).
float QuantizeQ8(std::span<const float> x, int8_t* codes, float* sums);

float Fp8ToFloat(uint8_t code, Fp8 format);

// How many values of a group a scale has spoilt. By value.
struct Losses {
  int64_t values = 0;
  int64_t clipped = 0;  // beyond what rounds to the greatest code
  int64_t flushed = 0;  // not zero, but rounded to it

  void operator+=(const Losses& other);
};
Losses CountLosses(std::span<const float> x, Fp8 format, float scale);

// RMSNorm of a row as the fused quantizers compute it: norm(x)[i] = factor *
// products[i], products = x * weight. Codes are those of the products; only
// scales are multiplied by the factor.
struct NormRow {
  std::span<const float> x;       // [k]
  const float* weight = nullptr;  // [k]
  float eps = 0;
};
// Writes products [k], single FP32 operations; returns the factor
// 1 / sqrt(mean(x^2) + eps), summed in FP64, or NaN where an x is not finite.
float NormProducts(const NormRow& row, float* products);

}  // namespace nibble::kernels::reference
