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

// Rows of x in tiles: block after block of some columns, in each the tiles
// behind each other, [columns, FloatTileRows()], so that a kernel which goes
// through the tiles of a block reads without gaps. Borrowed. By value.
struct FloatTilesView {
  float* data = nullptr;  // [k * count * FloatTileRows()]
  int64_t k = 0;
  int64_t count = 0;  // of tiles
};

// Writes x [rows, k], rows `x_stride` elements apart, as tile `tile`; rows from
// `rows` on are 0.
void PackFloatTile(const float* x, int64_t x_stride, int rows, int64_t tile,
                   const FloatTilesView& to);

// The operands of one call. By value.
struct FloatTilesCall {
  const std::byte* panel = nullptr;  // [k][16] elements of the format
  FloatTilesView x;
  int64_t first = 0;  // of the tiles to multiply
  int64_t count = 0;
  float* out = nullptr;  // [count * FloatTileRows(), 16]
};

// out[r][i] = x[r] . w[i]: the same bits as FloatPanelDot's.
void FloatTilesDot(QuantFormat format, const FloatTilesCall& call);

}  // namespace nibble::kernels::cpu
