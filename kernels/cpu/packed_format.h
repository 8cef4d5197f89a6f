// How the CPU backend keeps integer weights: panels of 16 output rows.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/checked_math.h"
#include "kernels/tensor.h"
#include "kernels/weight_view.h"

namespace nibble::kernels::cpu {

// Output rows of a panel: 16 lanes of 32 bits fill an AVX-512 register.
inline constexpr int kPanelRows = 16;
// Blocks of 32 weights that share the scales of a K format's super-block.
inline constexpr int kSuperBlocks = 8;

// Where the scale and the minimum of a weight come from.
enum class Scaling : uint8_t {
  kScale,      // scale * (code - offset), one FP16 scale a block
  kScaleMin,   // scale * code + minimum, FP16 each
  kSuper,      // d * s * code - dmin * m, 8-bit s and m a block (Q4_K, Q5_K)
  kSuper16,    // d * s * (code - offset), signed 8-bit s for 16 weights (Q6_K)
  kGroup,      // scale * (code - offset), a scale for a group of blocks
  kGroupMin,   // scale * code + minimum, both for a group of blocks
  kGroupZero,  // scale * (code - zero), zero an unsigned byte, the same
};

// The layout of one panel for one format, along k, without gaps:
//
//   A header where blocks share what it holds, before each super-block or
//   group:
//     kSuper: d, then -dmin, FP16 [16] each; kSuper16: d, FP16 [16].
//     kGroup: scale; kGroupMin: scale, then minimum; 16-bit [16] each, of type
//     scale_dtype. kGroupZero: scale, then zero, bytes [16].
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
// 6-bit scales widened to 8, 3% more; zero points: widened to 8), a 16-lane
// load per slab needs no shuffle, and four codes meet four activations in one
// 8-bit dot product.
struct PackedFormat {
  int code_bits;  // 4, 5, 6 or 8
  Scaling scaling;
  DType scale_dtype = DType::kF16;  // kF16 or, of groups only, kBF16

  friend constexpr bool operator==(const PackedFormat&,
                                   const PackedFormat&) = default;

  constexpr bool Grouped() const {
    return scaling == Scaling::kGroup || scaling == Scaling::kGroupMin ||
           scaling == Scaling::kGroupZero;
  }
  constexpr bool Centred() const {
    return scaling == Scaling::kScale || scaling == Scaling::kSuper16 ||
           scaling == Scaling::kGroup;
  }
  // Subtracted from codes.
  constexpr int Offset() const { return Centred() ? 1 << (code_bits - 1) : 0; }
  constexpr int CodeBytes() const { return 64 * code_bits; }
  constexpr int BlockBytes() const {
    if (Grouped()) return CodeBytes();
    return CodeBytes() + (scaling == Scaling::kScaleMin ? 4 : 2) * kPanelRows;
  }
  constexpr int HeaderBytes() const {
    switch (scaling) {
      case Scaling::kScale:
      case Scaling::kScaleMin:
        return 0;
      case Scaling::kSuper16:
      case Scaling::kGroup:
        return 2 * kPanelRows;
      case Scaling::kGroupZero:
        return 3 * kPanelRows;
      case Scaling::kSuper:
      case Scaling::kGroupMin:
        return 4 * kPanelRows;
    }
    return 0;
  }
  // `header_blocks` share a header; the last may have fewer.
  constexpr int64_t PanelBytes(int64_t blocks, int64_t header_blocks) const {
    return blocks * BlockBytes() +
           DivideUp(blocks, header_blocks) * HeaderBytes();
  }
};

// Every layout there is: kernels are made for each.
inline constexpr std::array kPackedFormats = {
    PackedFormat{4, Scaling::kScale},     // Q4_0
    PackedFormat{4, Scaling::kScaleMin},  // Q4_1
    PackedFormat{5, Scaling::kScale},     // Q5_0
    PackedFormat{5, Scaling::kScaleMin},  // Q5_1
    PackedFormat{8, Scaling::kScale},     // Q8_0
    PackedFormat{4, Scaling::kSuper},     // Q4_K
    PackedFormat{5, Scaling::kSuper},     // Q5_K
    PackedFormat{6, Scaling::kSuper16},   // Q6_K
    PackedFormat{4, Scaling::kGroup, DType::kF16},
    PackedFormat{4, Scaling::kGroup, DType::kBF16},
    PackedFormat{4, Scaling::kGroupMin, DType::kF16},
    PackedFormat{4, Scaling::kGroupMin, DType::kBF16},
    PackedFormat{4, Scaling::kGroupZero, DType::kF16},
    PackedFormat{4, Scaling::kGroupZero, DType::kBF16},
};

// Nothing for the float formats, which are no codes, and for those that this
// backend does not run.
inline std::optional<PackedFormat> PackedFormatOf(const WeightView& weight) {
  switch (weight.format) {
    case QuantFormat::kF32:
    case QuantFormat::kF16:
    case QuantFormat::kBF16:
    case QuantFormat::kMxfp4:
    case QuantFormat::kNvfp4:
      return std::nullopt;
    case QuantFormat::kQ4_0:
      return PackedFormat{4, Scaling::kScale};
    case QuantFormat::kQ4_1:
      return PackedFormat{4, Scaling::kScaleMin};
    case QuantFormat::kQ5_0:
      return PackedFormat{5, Scaling::kScale};
    case QuantFormat::kQ5_1:
      return PackedFormat{5, Scaling::kScaleMin};
    case QuantFormat::kQ8_0:
      return PackedFormat{8, Scaling::kScale};
    case QuantFormat::kQ4_K:
      return PackedFormat{4, Scaling::kSuper};
    case QuantFormat::kQ5_K:
      return PackedFormat{5, Scaling::kSuper};
    case QuantFormat::kQ6_K:
      return PackedFormat{6, Scaling::kSuper16};
    case QuantFormat::kInt4Sym:
      return PackedFormat{4, Scaling::kGroup, weight.scale_dtype};
    case QuantFormat::kInt4:
      return PackedFormat{4, Scaling::kGroupMin, weight.scale_dtype};
    case QuantFormat::kAwq:
    case QuantFormat::kGptq:
      return PackedFormat{4, Scaling::kGroupZero, weight.scale_dtype};
  }
  return std::nullopt;
}

// Blocks of 32 weights that share a header, for the formats that have one.
inline int64_t HeaderBlocks(const WeightView& weight) {
  constexpr int kWeights = 32;
  return IsBlockFormat(weight.format) ? kSuperBlocks
                                      : weight.Group() / kWeights;
}

}  // namespace nibble::kernels::cpu
