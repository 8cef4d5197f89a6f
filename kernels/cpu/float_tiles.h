// Float weights times many rows of float activations: tiles of rows whose sums
// fill the registers, blocks along k that fit the first cache level.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/quant_format.h"

namespace nibble::kernels::cpu {

// Rows of a tile on this machine: 6 or 12.
int FloatTileRows();
inline constexpr int kMaxFloatTileRows = 12;

// tile [k, FloatTileRows()] = x [rows, k] transposed, rows `x_stride` elements
// apart; columns from `rows` on are 0.
void PackFloatTile(const float* x, int64_t x_stride, int rows, int64_t k,
                   float* tile);

// The operands of one call. By value.
struct FloatTilesCall {
  const std::byte* panel = nullptr;  // [k][16] elements of the format
  int64_t k = 0;
  const float* tiles = nullptr;  // [count] of PackFloatTile, behind each other
  int64_t count = 0;
  float* out = nullptr;  // [count * FloatTileRows(), 16]
};

// out[r][i] = x[r] . w[i]: the same bits as FloatPanelDot's.
void FloatTilesDot(QuantFormat format, const FloatTilesCall& call);

}  // namespace nibble::kernels::cpu
