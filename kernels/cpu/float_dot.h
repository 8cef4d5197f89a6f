// Float weights times a few rows of float activations: one panel of 16 rows of
// weights.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/quant_format.h"

namespace nibble::kernels::cpu {

// Rows of x that one call takes.
inline constexpr int kMaxFloatRows = 8;

// The operands of one call. By value.
struct FloatDotCall {
  const std::byte* panel = nullptr;  // [k][16] elements of the format
  int64_t k = 0;
  const float* x = nullptr;  // [rows, k]
  int64_t x_stride = 0;      // elements
  int rows = 0;              // 1 to kMaxFloatRows
  float* out = nullptr;      // [kMaxFloatRows, 16]
};

// out[r][i] = x[r] . w[i], one chain of fused multiply-adds for each output,
// k ascending: the same bits whatever `rows` is.
void FloatPanelDot(QuantFormat format, const FloatDotCall& call);

}  // namespace nibble::kernels::cpu
