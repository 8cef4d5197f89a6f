// The integer kernels: one panel of weights times a few rows of activations.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/activations.h"
#include "kernels/cpu/packed_format.h"
#include "kernels/cpu/target.h"

namespace nibble::kernels::cpu {

// The operands of one kernel call. By value.
struct DotCall {
  const std::byte* panel = nullptr;  // 16 rows of weights, all of k
  int64_t blocks = 0;                // k / 32
  int64_t header_blocks = 0;         // that share a header of the panel
  const QuadBlock* x = nullptr;      // block 0 of the first quad of rows
  int64_t quad_stride = 0;           // QuadBlocks from a quad to the next
  int lane = 0;                      // the first row within its quad
  float* out = nullptr;              // [rows, 16]
};

// Computes out[r][i] = x[r] . w[i]. The one order of summation, kept by every
// kernel on every target, so that an output is the same bits whichever of
// them computes it and whatever else they compute beside it:
//
//   acc = 0
//   for each block b, ascending (kSuper16: for each half block):
//     dot = the exact integer sum of
//           (weight code - offset) * (activation code - zero)
//     acc = fma(float(dot), w_scale[b] * x_scale[b], acc)
//     with minimums: acc = fma(w_min[b], x_sum[b], acc)
//
// w_scale and w_min of the K formats are d * s and -dmin * m, w_min of a zero
// point is -scale * zero: exact in FP32.
using DotKernel = void (*)(const DotCall& call);

// The kernels of one format on one target, by the rows they compute: 1 and 2
// rows within one quad, then 1 to 4 whole quads.
inline constexpr int kMaxDotRows = 16;
inline constexpr int kDotVariants = 6;
inline constexpr int kFirstQuadVariant = 2;
struct DotKernels {
  DotKernel by_variant[kDotVariants] = {};
};

// The least variant whose kernel computes `rows` rows from row `lane` of a
// quad on, lane + rows <= kMaxDotRows. Variants of whole quads start at lane 0
// and compute rows after the wanted ones too: `out` has room for them.
constexpr int VariantFor(int lane, int rows) {
  if (rows == 1) return 0;
  if (rows == 2 && lane % 2 == 0) return 1;
  return kFirstQuadVariant + (lane + rows - 1) / kQuad;
}

// What becomes of one or two rows after the last whole quad: computed as if
// the quad were full, or by the kernels of few rows in a second pass.
enum class RowTail : uint8_t { kPadded, kApart };

// How many of `left` rows from row `lane` of a quad on the next kernel takes.
constexpr int RowsAtOnce(int lane, int64_t left, RowTail tail) {
  const int64_t rows = left < kMaxDotRows - lane ? left : kMaxDotRows - lane;
  const int64_t after = (lane + rows) % kQuad;
  const bool apart =
      tail == RowTail::kApart && (after == 1 || after == 2) && rows > after;
  return static_cast<int>(apart ? rows - after : rows);
}

// How far ahead of its loads a 256-bit kernel asks for weights: it takes longer
// with a block than the processor looks ahead. Into the second cache level: the
// first can wait for too few lines at once.
inline constexpr int kAheadBytes = 4096;
inline constexpr int kLineBytes = 64;

// `target` must be available, `format` one of kPackedFormats.
DotKernels DotKernelsFor(CpuTarget target, const PackedFormat& format);

// One for each target; empty tables where the compiler cannot make it.
DotKernels PortableDotKernels(const PackedFormat& format);
DotKernels NeonDotKernels(const PackedFormat& format);
DotKernels NeonDotprodDotKernels(const PackedFormat& format);
DotKernels NeonI8mmDotKernels(const PackedFormat& format);
DotKernels Avx2DotKernels(const PackedFormat& format);
DotKernels AvxVnniDotKernels(const PackedFormat& format);
DotKernels Avx512VnniDotKernels(const PackedFormat& format);

}  // namespace nibble::kernels::cpu
