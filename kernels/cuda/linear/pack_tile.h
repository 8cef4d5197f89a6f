// Packs one block of one tile; the inside of pack.cc.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/linear/w4_layout.h"
#include "kernels/weight_view.h"

namespace nibble::kernels::cuda {

// Rows [first, first + count) of a tile are rows [row, row + count) of a
// tensor. In AWQ and GPTQ tensors all three are multiples of 8.
struct TileRun {
  const WeightView* weight = nullptr;
  int64_t row = 0;
  int first = 0;
  int count = 0;
};

// What all blocks of a matrix have in common.
struct BlockFormat {
  W4Layout layout;
  // FP16 scales and minimums are stored times 2^-scale_exponent.
  int scale_exponent = 0;
  std::span<const int32_t> x_perm;  // PackedW4::x_perm
};

// Writes the codes of columns [kBlockK * block, kBlockK * (block + 1)) of a
// tile to out [kCodeBytes].
void PackCodes(std::span<const TileRun> runs, const BlockFormat& format,
               int64_t block, std::byte* out);

// Writes their scales to out [layout.BlockScaleBytes()], which holds zeros.
void PackScales(std::span<const TileRun> runs, const BlockFormat& format,
                int64_t block, std::byte* out);

// 2^exponent; as a float exact for exponents of -126 to 127.
constexpr float PowerOfTwo(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

}  // namespace nibble::kernels::cuda
