// Small kernels that a measurement needs around the kernel it is about: ones
// that read, wait, or fill buffers with random numbers. All are enqueued.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/w4_layout.h"
#include "kernels/tensor.h"

struct CUstream_st;  // cudaStream_t

namespace nibble::bench {

void LaunchEmpty(CUstream_st* stream);

// Keeps the device busy, so that the host gets ahead of it.
void LaunchSpin(int64_t ns, CUstream_st* stream);

// Reads the buffer [bytes, a multiple of 16], which drives everything else out
// of the L2 and leaves no dirty lines there.
void LaunchFlush(const void* buffer, int64_t bytes, CUstream_st* stream);

// How a kernel that only reads does it.
struct ReadPattern {
  int loads = 8;         // 16-byte loads in flight per thread: 4, 8 or 16
  bool overlap = false;  // programmatic dependent launch
};

// Reads `bytes` (a multiple of 16) with plain 16-byte loads, each once.
void LaunchRead(const void* data, int64_t bytes, ReadPattern pattern,
                CUstream_st* stream);

// Packed blocks (w4_layout.h) of random codes and scales such that weights
// have a magnitude of about 0.01. No padding: n and k fill their tiles.
void LaunchFillPacked(kernels::cuda::W4Layout layout, void* blocks,
                      int64_t bytes, uint64_t seed, CUstream_st* stream);

// `bytes` (a multiple of 16) random bytes.
void LaunchFillBytes(void* data, int64_t bytes, uint64_t seed,
                     CUstream_st* stream);

struct Uniform {
  float low = -1;
  float high = 1;
};
// Uniform numbers, kF16 or kBF16.
void LaunchFillUniform(kernels::DType dtype, void* data, int64_t count,
                       Uniform range, uint64_t seed, CUstream_st* stream);

}  // namespace nibble::bench
