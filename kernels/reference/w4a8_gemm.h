// Products of 4-bit weights and 8-bit activations, computed so that they can be
// believed: integer sums exactly, the rest in FP64. What the W4A8 kernels are
// tested against.
#pragma once

#include <cstdint>
#include <span>

namespace nibble::kernels::reference {

// A row of 4-bit weights: scale * code + minimum of the code's group. Borrowed.
// By value.
struct W4Row {
  std::span<const uint8_t> codes;   // [k], 0 .. 15
  std::span<const float> scales;    // [ceil(k / group)]
  std::span<const float> minimums;  // [ceil(k / group)]
  int64_t group = 0;
};

// A sum of products, and the sum of their magnitudes, which says how far off a
// sum in fewer bits may be. By value.
struct W4A8Dot {
  double value = 0;
  double magnitude = 0;
};

// The row times x, [k]: codes, or what codes of FP8 stand for.
W4A8Dot DotOfW4A8(const W4Row& w, std::span<const int8_t> x);
W4A8Dot DotOfW4A8(const W4Row& w, std::span<const float> x);

}  // namespace nibble::kernels::reference
