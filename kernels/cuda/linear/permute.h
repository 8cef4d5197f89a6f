// Columns of x in another order, for weights packed in act-order.
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime.h"

namespace nibble::kernels::cuda {

// One copy. Device memory, borrowed for the launch; 16-bit elements.
struct GatherColumnsArgs {
  const void* x = nullptr;  // [m, k], rows ldx elements apart
  int64_t ldx = 0;
  const int32_t* columns = nullptr;  // [k], each in [0, k)
  void* out = nullptr;               // [m, ldout], 16-byte aligned
  int64_t ldout = 0;  // elements, a multiple of 8, >= k; zeros from k on
  int64_t m = 0;
  int64_t k = 0;
};

// Enqueues out[i, j] = x[i, columns[j]]. m = 0 is a no-op.
void GatherColumns(const GatherColumnsArgs& args, const Stream& stream);

}  // namespace nibble::kernels::cuda
