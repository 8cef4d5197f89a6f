// Rows of a packed matrix as numbers: the lookup of token embeddings.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/w4a16.h"
#include "kernels/cuda/runtime.h"
#include "kernels/tensor.h"

namespace nibble::kernels::cuda {

// One lookup. Device memory, borrowed for the launch.
struct GatherRowsArgs {
  W4Weights w;
  const int32_t* x_perm = nullptr;  // [k]: PackedW4::x_perm, or null
  // Row i of y is row ids[i] - first_row of w, and left alone where w has no
  // such row.
  const int32_t* ids = nullptr;  // [y.rows]
  int64_t first_row = 0;
  TensorView y;  // [rows, k], kF32, kF16 or kBF16
};

// Enqueues the lookup. In FP32 the values are those of the reference
// dequantizer, bit for bit. No rows: a no-op.
void LaunchGatherRows(const GatherRowsArgs& args, const Stream& stream);

}  // namespace nibble::kernels::cuda
