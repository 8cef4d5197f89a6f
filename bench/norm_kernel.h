// RMSNorm with 16-bit results: what precedes a linear layer that takes
// activations as they are, beside the norms that quantize
// (kernels/cuda/quantize).
#pragma once

#include <cstdint>

#include "kernels/tensor.h"

struct CUstream_st;  // cudaStream_t

namespace nibble::bench {

// The greatest k: a row is held in the registers of one CTA.
inline constexpr int64_t kMaxNormK = 32768;

// One launch. Device memory, rows without gaps, 16-byte aligned. By value.
struct NormArgs {
  kernels::DType dtype = kernels::DType::kBF16;  // kBF16 or kF16
  const void* x = nullptr;                       // [m, k]
  const float* weight = nullptr;                 // [k]
  float eps = 0;
  void* y = nullptr;  // [m, k]: x * weight / sqrt(mean of x^2 + eps)
  int64_t m = 0;
  int64_t k = 0;         // a multiple of 8 up to kMaxNormK
  bool overlap = false;  // programmatic dependent launch
};

// Enqueues it; reads x once.
void LaunchNorm(const NormArgs& args, CUstream_st* stream);

}  // namespace nibble::bench
