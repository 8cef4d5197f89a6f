// Matrices rounded to 8 bits and back, by the reference's roundings
// (activation_codes.h).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/activation_codes.h"
#include "kernels/reference/quantize.h"

namespace nibble::bench {

// Numbers [rows, cols]. By value.
struct Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<float> data;

  std::span<const float> Row(int64_t row) const {
    return std::span(data).subspan(row * cols, cols);
  }
};

float GreatestOf(std::span<const float> x);

// A matrix rounded to 8 bits and back, and what its scales spoilt.
struct Rounded {
  Matrix values;
  kernels::reference::Losses losses;
};

// The number of rows and columns that share a scale.
struct Tile {
  int64_t rows = 0;
  int64_t cols = 0;
};

using ScaleOf = std::function<float(float greatest)>;

// The scale of a tile from its own greatest magnitude.
ScaleOf CurrentScale(kernels::Fp8 format);

// FP8 by the scale that `scale_of` makes of a tile's greatest magnitude.
Rounded RoundFp8(const Matrix& x, kernels::Fp8 format, Tile tile,
                 const ScaleOf& scale_of);

// INT8, `group` columns of a row to a scale.
Rounded RoundInt8(const Matrix& x, kernels::Int8Range range, int64_t group);

}  // namespace nibble::bench
