// How 4-bit weights lie in device memory: the one layout that every W4A16
// kernel reads, and what a packer must write. No CUDA in here.
//
// A matrix W[n, k] is cut into tiles of 16 rows, a tile along k into blocks of
// 256 weights. Blocks are stored tile by tile, k ascending, each contiguous
// and 16-byte aligned: 2,048 bytes of codes, then the block's scales.
//
// Codes are in the order in which mma.m16n8k16 (PTX ISA, "Matrix Fragments for
// mma.m16n8k16") wants its A operand. A block holds 16 steps of k = 16. In
// step s, lane l of a warp (g = l / 4, t = l % 4) holds eight weights in one
// 32-bit word:
//
//   bits  0.. 3  (g,     2t)       bits 16..19  (g,     2t + 1)
//   bits  4.. 7  (g + 8, 2t)       bits 20..23  (g + 8, 2t + 1)
//   bits  8..11  (g,     2t + 8)   bits 24..27  (g,     2t + 9)
//   bits 12..15  (g + 8, 2t + 8)   bits 28..31  (g + 8, 2t + 9)
//
// (row in the tile, k in the step). The words of four successive steps stand
// together, so that a lane's 16-byte load feeds four mma:
// word(step, lane) = block + 16 * (32 * (step / 4) + lane) + 4 * (step % 4).
//
// E2M1 codes (sign, two exponent bits, one mantissa bit) are spread otherwise
// over the two 16-bit halves of the word; see kE2m1Bits.
//
// Scales stand together as a lane wants them: those of rows 0 and 8, then of 1
// and 9, and so on to 7 and 15; of a pair of rows group by group, in a group
// the upper row's first (W4Layout::ScaleAt).
//
// Rows beyond n and weights beyond k are padding: their scales, minimums and
// codes are zero, so that they add nothing (the kernels feed zeros there).
#pragma once

#include <array>
#include <cstdint>

namespace nibble::kernels::cuda {

inline constexpr int kTileRows = 16;     // rows of W in a tile
inline constexpr int kBlockK = 256;      // weights along k in a block
inline constexpr int kCodeBytes = 2048;  // kTileRows * kBlockK / 2
inline constexpr int kStepK = 16;        // k of one mma

enum class W4Code : uint8_t {
  kInt4,  // 0 .. 15
  kE2m1,  // OCP Microscaling Formats v1.0: 0 0.5 1 1.5 2 3 4 6 and negatives
};

// What stands for one group of weights of one row, and what a weight is.
// s, m, z are IEEE binary16; `tensor` is W4Weights::tensor_scale.
enum class W4Scale : uint8_t {
  kScale,      // { s }:    tensor * s * (code - 8)
  kScaleMin,   // { s, m }: tensor * (s * code + m)
  kScaleZero,  // { s, z }: tensor * s * (code - z)
  kQ4K,        // a super-block of 256: see kQ4KBytes; s * code - m
  kE8m0,       // { e }, one byte: tensor * 2^(e - kE8m0Bias) * value
  kE4m3,       // { e }, one byte: tensor * E5m3(e) * value
};

// The scales of MXFP4 and NVFP4 are written down in another way than files do,
// so that a shift and a mask (and an or) make of them what the kernels need: an
// FP32 number that takes back the powers of two in which codes and x are
// counted. OCP's E8M0 number 2^(e - 127) is the byte e + kE8m0Shift; beyond
// kMaxE8m0 it has none. 255 is infinite, and the codes of its group are zeros,
// so that it makes NaNs as 255 does there.
inline constexpr int kE8m0Shift = 62;
inline constexpr int kE8m0Bias = 127 + kE8m0Shift;
inline constexpr int kMaxE8m0 = 254 - kE8m0Shift;
// E4M3 scales are five bits of exponent and three of mantissa without subnormal
// numbers, sign and zero: (8 + m) 2^(e - kE5m3Bias - 3). Signs go to the codes,
// and a scale of zero to codes of zero. 2^kE5m3TensorLog2 is in the tensor's
// scale: no number has room for it and for the unit of codes.
inline constexpr int kE5m3Bias = 62;
inline constexpr int kE5m3TensorLog2 = 39;

// Q4_K keeps the 16 bytes of a super-block's row as the file has them (ggml's
// block_q4_K without its codes): { f16 d, f16 dmin, u8 scales[12] }.
inline constexpr int kQ4KBytes = 16;

// One of the layouts above. By value.
struct W4Layout {
  W4Code code = W4Code::kInt4;
  W4Scale scale = W4Scale::kScaleMin;
  int group = 128;  // weights along k that share a scale: 16, 32, 64 or 128

  constexpr int GroupsPerBlock() const { return kBlockK / group; }
  // Bytes that one group of one row takes.
  constexpr int ScaleBytes() const {
    switch (scale) {
      case W4Scale::kScale:
        return 2;
      case W4Scale::kScaleMin:
      case W4Scale::kScaleZero:
        return 4;
      case W4Scale::kQ4K:
        return kQ4KBytes * group / kBlockK;  // eight groups share 16 bytes
      case W4Scale::kE8m0:
      case W4Scale::kE4m3:
        return 1;
    }
    return 0;
  }
  constexpr int BlockScaleBytes() const {
    return kTileRows * GroupsPerBlock() * ScaleBytes();
  }
  // Where the scales of a group of a row of the tile stand behind the codes; of
  // Q4_K, where those of all groups of the row do (group 0).
  constexpr int ScaleAt(int row, int group) const {
    if (scale == W4Scale::kQ4K) {
      return (row % 8 * 2 + row / 8) * kQ4KBytes;
    }
    return ((row % 8 * GroupsPerBlock() + group) * 2 + row / 8) * ScaleBytes();
  }
  constexpr int BlockBytes() const { return kCodeBytes + BlockScaleBytes(); }

  bool operator==(const W4Layout&) const = default;
};

// Where the bits of an E2M1 code stand in its 16-bit half of a word, for the
// four pairs of the picture above (index: bits 4 i .. 4 i + 3 of an integer
// code): sign, high exponent bit, low exponent bit, mantissa bit. Chosen so
// that for three of them one left shift (0, 3, 6) and one mask give the bits
// of a BF16 number, sign at 15 and the rest at 8..6; FP16 has the rest at
// 11..9.
inline constexpr std::array<std::array<int, 4>, 4> kE2m1Bits = {{
    {15, 8, 7, 6},
    {12, 5, 4, 3},
    {9, 2, 1, 0},
    {14, 13, 11, 10},
}};

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr int64_t Tiles(int64_t n) { return CeilDiv(n, kTileRows); }
constexpr int64_t BlocksPerTile(int64_t k) { return CeilDiv(k, kBlockK); }
constexpr int64_t PackedBytes(W4Layout layout, int64_t n, int64_t k) {
  return Tiles(n) * BlocksPerTile(k) * layout.BlockBytes();
}

// The summation order of the whole kernel family, a function of k alone: the
// blocks of k are cut into at most kMaxSlices slices of SliceBlocks(k) blocks
// (the last may have fewer). Within a slice groups follow each other in one
// chain of FP32 FMAs that starts from zero. Slices are added in ascending order
// to the sums of four quarters of QuarterSlices(slices) slices each (the last
// may have fewer), and those again in ascending order: so four CTAs can take a
// quarter each, and one can do with two sums. A row of the result is the same
// bits in every kernel and for every M.
//
// Slices go in equal numbers to kSliceSharers CTAs, and those that a CTA lacks
// are time lost: of 8 to 16 slices (as many as there are blocks, where those
// are fewer) the number is taken that loses least, of equals the greatest.
// 4,096 is 16 slices of one block, 14,336 is 8 of seven.
inline constexpr int kMaxSlices = 16;
inline constexpr int kMinSlices = 8;
inline constexpr int kSliceSharers = 4;
constexpr int SliceBlocks(int64_t k) {
  const int64_t blocks = BlocksPerTile(k);
  int64_t best = 0, least = 0;
  for (int slices = kMaxSlices; slices >= kMinSlices; --slices) {
    const int64_t length = CeilDiv(blocks, slices);
    const int64_t count = CeilDiv(blocks, length);  // sometimes fewer
    const int64_t lasts = length * CeilDiv(count, kSliceSharers);
    if (best != 0 && (count < kMinSlices || lasts >= least)) continue;
    best = length;
    least = lasts;
  }
  return static_cast<int>(best);
}
constexpr int Slices(int64_t k) {
  return static_cast<int>(CeilDiv(BlocksPerTile(k), SliceBlocks(k)));
}
constexpr int QuarterSlices(int slices) {
  return (slices + kSliceSharers - 1) / kSliceSharers;
}

}  // namespace nibble::kernels::cuda
