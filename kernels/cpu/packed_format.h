// How the CPU backend keeps integer weights: panels of 16 output rows.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/quant_format.h"

namespace nibble::kernels::cpu {

// Output rows of a panel: 16 lanes of 32 bits fill an AVX-512 register.
inline constexpr int kPanelRows = 16;
// Blocks of 32 weights that share the scales of a super-block.
inline constexpr int kSuperBlocks = 8;

// Where the scale and the minimum of a weight come from.
enum class Scaling : uint8_t {
  kScale,     // scale * (code - offset), one FP16 scale a block
  kScaleMin,  // scale * code + minimum, FP16 each
  kSuper,     // d * s * code - dmin * m, 8-bit s and m a block (Q4_K, Q5_K)
  kSuper16,   // d * s * (code - offset), signed 8-bit s for 16 weights (Q6_K)
};

// The layout of one panel for one format, along k, without gaps:
//
//   kSuper and kSuper16 at the start of each super-block: d, then kSuper's
//   -dmin, FP16 [16] each.
//   For each block of 32 weights:
//     codes  unsigned, 8 slabs of 4 weights x 16 rows: weight 4 j + t of row
//            i is byte 4 i + t of slab j. The low four bits of slabs 2 p and
//            2 p + 1 share 64 bytes (low and high nibble); after those come
//            the upper bits: one plane of 64 bytes for 5-bit codes (bit j =
//            slab j), two for 6-bit ones (bits 2 (j % 4) of plane j / 4).
//            8-bit codes are 8 slabs of 64 bytes.
//     kScale, kScaleMin: scale, then minimum, FP16 [16] each.
//     kSuper: s, then m, unsigned bytes [16]; kSuper16: s of the first and s
//     of the second 16 weights, signed bytes [16].
//
// So a panel takes the file's bytes (Q8_0: codes + 128; the K formats: their
// 6-bit scales widened to 8, 3% more), a 16-lane load per slab needs no
// shuffle, and four codes meet four activations in one 8-bit dot product.
struct PackedFormat {
  int code_bits;  // 4, 5, 6 or 8
  Scaling scaling;
  // Subtracted from codes of kScale and kSuper16: 1 << offset_shift.
  int offset_shift;

  constexpr int CodeBytes() const { return 64 * code_bits; }
  constexpr int BlockBytes() const { return CodeBytes() + ScaleBytes(); }
  constexpr int SuperBytes() const {
    if (scaling == Scaling::kSuper) return 4 * kPanelRows;
    return scaling == Scaling::kSuper16 ? 2 * kPanelRows : 0;
  }
  constexpr int64_t PanelBytes(int64_t blocks) const {
    return blocks * BlockBytes() + blocks / kSuperBlocks * SuperBytes();
  }

 private:
  constexpr int ScaleBytes() const {
    return scaling == Scaling::kScaleMin ? 4 * kPanelRows : 2 * kPanelRows;
  }
};

// Nothing for the float formats, which are no codes, and for those that this
// backend does not run.
constexpr std::optional<PackedFormat> PackedFormatOf(QuantFormat format) {
  switch (format) {
    case QuantFormat::kF32:
    case QuantFormat::kF16:
    case QuantFormat::kBF16:
    case QuantFormat::kInt4:
    case QuantFormat::kInt4Sym:
    case QuantFormat::kAwq:
    case QuantFormat::kGptq:
    case QuantFormat::kMxfp4:
    case QuantFormat::kNvfp4:
      return std::nullopt;
    case QuantFormat::kQ4_0:
      return PackedFormat{4, Scaling::kScale, 3};
    case QuantFormat::kQ4_1:
      return PackedFormat{4, Scaling::kScaleMin, 0};
    case QuantFormat::kQ5_0:
      return PackedFormat{5, Scaling::kScale, 4};
    case QuantFormat::kQ5_1:
      return PackedFormat{5, Scaling::kScaleMin, 0};
    case QuantFormat::kQ8_0:
      return PackedFormat{8, Scaling::kScale, 7};
    case QuantFormat::kQ4_K:
      return PackedFormat{4, Scaling::kSuper, 0};
    case QuantFormat::kQ5_K:
      return PackedFormat{5, Scaling::kSuper, 0};
    case QuantFormat::kQ6_K:
      return PackedFormat{6, Scaling::kSuper16, 5};
  }
  return std::nullopt;
}

}  // namespace nibble::kernels::cpu
