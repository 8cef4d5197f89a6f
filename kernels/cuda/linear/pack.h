// Packs weights of a checkpoint into the layout that the W4A16 kernels read.
// Pure host code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/linear/w4_layout.h"
#include "kernels/weight_view.h"

namespace nibble::kernels::cuda {

// A packed matrix W[n, k] in host memory. Owned by whoever packs it, until its
// blocks are on the device.
struct PackedW4 {
  std::vector<std::byte> blocks;  // PackedBytes(layout, n, k)
  int64_t n =
      0;  // rows of all parts; with interleave_gate_up see InterleavedRow
  int64_t k = 0;
  W4Layout layout;
  float tensor_scale = 1.0f;
  // Column c of the packed matrix is column x_perm[c] of the parts (and so of
  // x); [k], or empty when they are in the same order.
  std::vector<int32_t> x_perm;
};

struct PackOptions {
  // Two parts of as many rows, gate and up, in tiles that alternate as
  // InterleavedRow (w4a16.h) says, for W4Epilogue::kSiluMul.
  bool interleave_gate_up = false;
  int threads = 1;  // that pack at the same time
};

// The layout that `weight` is packed in; INVALID_ARGUMENT for a format of no
// 4-bit codes. Groups of more than 128 weights repeat the scale of 128.
absl::StatusOr<W4Layout> W4LayoutOf(const WeightView& weight);

// Packs `parts`, of one k, stacked along n. Every weight of the result is the
// same FP32 number as the reference dequantizer's.
//
// INVALID_ARGUMENT names the tensor, the value and the limit when a part fails
// CheckWeight, has a group of another size than act-order leaves room for, has
// BF16 scales that no power of two (tensor_scale) brings into FP16 exactly, or
// differs from the first in layout, tensor scale or order of columns. Of parts
// with BF16 scales the power of two is one for all. RESOURCE_EXHAUSTED when
// there is not enough memory.
absl::StatusOr<PackedW4> PackW4(std::span<const WeightView> parts,
                                const PackOptions& options = {});

// Writes row `row` of the packed matrix to out [k], its columns in the order of
// the parts. One weight at a time, for tests and benches.
void UnpackW4Row(const PackedW4& packed, int64_t row, float* out);

}  // namespace nibble::kernels::cuda
