// Rows of activations in 8 bits, for layers with a wide path.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/linear/linear_context.h"
#include "kernels/linear.h"

namespace nibble::kernels::cuda {

// Where rows in 8 bits are, W8Pitch(k) bytes each, and the scale of each, on
// the device. By value; the memory is that of whoever made them.
struct EncodedRows {
  const std::byte* codes;
  const float* scales;
};

// The rows of a call in `packing` (kInt8 or kE4m3): as its activations have
// them, or encoded on the context's stream into `codes` [rows, W8Pitch(k)] and
// `scales` [rows]. Activations that have codes of another packing are fatal.
EncodedRows EncodeRows(const LinearCall& call, WidePacking packing, int64_t k,
                       std::byte* codes, float* scales,
                       const CudaLinearContext& context);

}  // namespace nibble::kernels::cuda
