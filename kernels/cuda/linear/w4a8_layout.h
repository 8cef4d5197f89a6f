// How 4-bit weights lie in device memory for the W4A8 kernels (w4a8.cuh). No
// CUDA in here.
//
// A matrix W[n, k] is cut into tiles of 128 rows, a tile along k into stages of
// 128 weights, a stage into two blocks of 64 rows, one a warpgroup. k is padded
// to whole pairs of stages, n to whole tiles. Blocks follow each other tile by
// tile, stages ascending: 4,096 bytes of codes, then the rows' scales.
//
// Codes are in the order in which wgmma takes an 8-bit A operand from registers
// (PTX ISA, "wgmma.mma_async", k32). Warp w has rows 16 w .. 16 w + 15 of the
// block. In step s (k = 32 s ..) of a stage lane l (g = l / 4, t = l % 4) has
// two words of eight codes:
//
//   word 2 s      byte b: k = 4 t + b         low half: fragment row g,
//   word 2 s + 1  byte b: k = 16 + 4 t + b    high half: fragment row g + 8
//
// so that the halves of a word's bytes, masked, are registers of the operand.
// Words 4 h .. 4 h + 3 of a lane stand together, at 1024 w + 512 h + 16 l.
//
// Fragment row r of a warp is row W4a8Row(r) of its 16: once sums are
// transposed (movmatrix), a thread has four neighbours of a row of y.
//
// Scales: a pair of rows g and g + 8 after the other, row g's first, of each
// row kRowBytes (W4a8Format): those of the stage's groups, ascending.
//
// Where there are minimums, codes of W and INT8 ones of x are both unsigned, x
// by an offset of 128. A sum of products is then read as the bits of an FP32
// number, sum * 2^-149, and needs no conversion. Scales stand there times 2^85,
// so that FP32 sums are y times 2^-64, and so are minimums and where a row's
// sums begin: -128 times the sum of scale * code, so that x's offset is not in
// them.
//
// Minimums are not in there: sum(min * sum(x)) over groups is a product of its
// own, in BF16. Stages ahead of a tile's first hold them in place of codes, 16
// groups each: word 2 s + r / 8 of lane l is the minimum of fragment row r and
// group 4 s + t, as two BF16 numbers that add up to it, the greater one low.
#pragma once

#include <cstdint>

#include "base/checked_math.h"

namespace nibble::kernels::cuda {

// What weights are multiplied as.
enum class W4a8Kind : uint8_t {
  // Rounded again to 8 bits with one scale a row, (code * m + o) >> 8, m and o
  // of the group, both even (W4a8Rerounded): {u16 m, i16 o}.
  kRerounded,
  kScale,     // scale * (code - 8); {f32 scale / 16}, codes are code ^ 8
  kScaleMin,  // scale * code + minimum; {f32 scale * 2^85}
  // scale * sub * code + minimum, scale one of 256 weights, sub an integer of 6
  // bits and one of 32: {u8 sub [4], f32 scale * 2^85}. Sub-scales in two parts
  // of 3 bits are multiplied into the codes.
  kSubScale,
  // The same; sums of 32 are multiplied instead, as integers: {u8 sub [4], f32
  // scale * 2^-64}.
  kSubScaleSums,
  kSubScaleFloat,  // as kSubScale, sums of 32 times scale * sub in FP32
  // As kScaleMin, x E4M3: {f32 scale * 2^9}. A code's byte, read as E4M3, is
  // the code times 2^-9.
  kE4m3,
};

// A kind and how many weights along k share a scale: 32 or 128. By value.
struct W4a8Format {
  W4a8Kind kind;
  int group;

  bool operator==(const W4a8Format&) const = default;

  constexpr bool HasSubScales() const {
    return kind == W4a8Kind::kSubScale || kind == W4a8Kind::kSubScaleSums ||
           kind == W4a8Kind::kSubScaleFloat;
  }
  constexpr bool HasMinimums() const {
    return kind == W4a8Kind::kScaleMin || kind == W4a8Kind::kE4m3 ||
           HasSubScales();
  }
  // x is unsigned, by an offset, and sums are no greater than 2^23.
  constexpr bool HasOffsets() const {
    return HasMinimums() && kind != W4a8Kind::kE4m3;
  }
  // FP32 sums, minimums and offsets, and scales, are those of the weights
  // times so much.
  constexpr float SumUnit() const { return HasOffsets() ? 0x1p-64f : 1; }
  constexpr float ScaleUnit() const {
    switch (kind) {
      case W4a8Kind::kRerounded:
        return 1;
      case W4a8Kind::kScale:
        return 1.0f / 16;
      case W4a8Kind::kE4m3:
        return 0x1p9f;
      case W4a8Kind::kSubScaleSums:
        return SumUnit();
      default:
        return 0x1p85f;  // 2^149 times SumUnit()
    }
  }
  constexpr int RowBytes() const {
    return HasSubScales() ? 8 : 4 * (128 / group);
  }
  constexpr int BlockBytes() const { return 4096 + 64 * RowBytes(); }
};

inline constexpr W4a8Format kW4a8Formats[] = {
    {W4a8Kind::kRerounded, 128},    {W4a8Kind::kRerounded, 32},
    {W4a8Kind::kScale, 128},        {W4a8Kind::kScale, 32},
    {W4a8Kind::kScaleMin, 128},     {W4a8Kind::kScaleMin, 32},
    {W4a8Kind::kSubScale, 32},      {W4a8Kind::kSubScaleSums, 32},
    {W4a8Kind::kSubScaleFloat, 32}, {W4a8Kind::kE4m3, 128},
    {W4a8Kind::kE4m3, 32},
};

inline constexpr int kW4a8BlockRows = 64;
inline constexpr int kW4a8TileRows = 128;
inline constexpr int kW4a8StageK = 128;
inline constexpr int kW4a8PairK = 256;  // of two stages, which k is padded to
inline constexpr int kW4a8CodeBytes = 4096;
inline constexpr int kW4a8MinGroups = 16;    // in a stage of minimums
inline constexpr int kW4a8SuperBlock = 256;  // weights that share kSubScale's
inline constexpr int kW4a8XOffset = 128;     // of x, HasOffsets

constexpr int W4a8Row(int fragment_row) {
  const int in_half = fragment_row % 8;
  return in_half / 2 * 4 + in_half % 2 + fragment_row / 8 * 2;
}

constexpr int64_t W4a8Tiles(int64_t n) {
  return DivideUp(n, int64_t{kW4a8TileRows});
}
constexpr int64_t W4a8Stages(int64_t k) {
  return DivideUp(k, int64_t{kW4a8PairK}) * 2;
}
constexpr int64_t W4a8MinStages(W4a8Format format, int64_t k) {
  return format.HasMinimums() ? DivideUp(DivideUp(k, int64_t{format.group}),
                                         int64_t{kW4a8MinGroups})
                              : 0;
}
constexpr int64_t W4a8PackedBytes(W4a8Format format, int64_t n, int64_t k) {
  return W4a8Tiles(n) * (W4a8MinStages(format, k) + W4a8Stages(k)) * 2 *
         format.BlockBytes();
}

// Sums of groups of x stand beside it for minimums: bytes of a token's, whole
// stages. In 4 groups 4 s + t, t = 0 .. 3, BF16 numbers 16 s + 2 t and 16 s +
// 2 t + 1 are both the sum's greater part, numbers 8 further its rest.
constexpr int64_t W4a8SumsPitch(W4a8Format format, int64_t k) {
  return W4a8MinStages(format, k) * kW4a8StageK;
}

// The 8-bit code of a kRerounded one.
constexpr int W4a8Rerounded(int code, int m, int o) {
  return (code * m + o) >> 8;
}

}  // namespace nibble::kernels::cuda
