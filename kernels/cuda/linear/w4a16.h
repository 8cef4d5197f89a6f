// W4A16: y = x W^T with 4-bit weights and 16-bit activations. What one launch
// computes, how it may be run, and the launchers.
//
// Every kernel of the family gives a row of y the same bits, whatever M is
// (the summation order is written in w4_layout.h and docs/kernels.md).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/linear/w4_layout.h"
#include "kernels/linear.h"
#include "kernels/tensor.h"

struct CUstream_st;  // cudaStream_t, so that host code needs no CUDA header

namespace nibble::kernels::cuda {

// A packed matrix W[n, k] in device memory (w4_layout.h). Borrowed. By value.
struct W4Weights {
  const void* blocks = nullptr;  // PackedBytes(layout, n, k), 16-byte aligned
  int64_t n = 0;
  int64_t k = 0;
  W4Layout layout;
  float tensor_scale = 1.0f;
};

enum class W4Epilogue : uint8_t {
  kStore,    // y = x W^T + bias
  kAdd,      // y += x W^T + bias
  kSiluMul,  // y[m, i] = silu(gate i) * up i; rows of W: see InterleavedRow
};

// For kSiluMul gate and up of f rows each are packed as one matrix of
// 2 * 16 * ceil(f / 16) rows in which tiles of 16 gate rows and of the 16 up
// rows of the same features alternate; y has f columns.
constexpr int64_t InterleavedRow(int64_t feature, bool up) {
  return (feature / kTileRows * 2 + (up ? 1 : 0)) * kTileRows +
         feature % kTileRows;
}

// One multiplication. All pointers are device memory, borrowed for the launch.
struct W4Args {
  W4Weights w;
  const void* x = nullptr;  // [m, k], rows ldx elements apart, 16-byte aligned
  int64_t ldx = 0;          // elements, a multiple of 8, >= k
  // kBF16 or kF16. BF16 is multiplied by 2^64 on the way: from |x| = 2^63 on,
  // or where the x of a group of weights add up to that, results are infinite
  // or NaN.
  DType x_dtype = DType::kBF16;
  void* y = nullptr;             // [m, n] ([m, n_out] for kSiluMul)
  int64_t ldy = 0;               // elements
  DType y_dtype = DType::kBF16;  // kBF16, kF16 or kF32
  int64_t m = 0;
  int64_t n_out = 0;            // columns of y: w.n, or f for kSiluMul
  const float* bias = nullptr;  // [n_out] or null; not with kSiluMul
  W4Epilogue epilogue = W4Epilogue::kStore;
  // Scratch for the mid kernel, W4ScratchBytes(m, k) or more; one stream's.
  void* scratch = nullptr;
};

// Bytes of scratch that any kernel of the family needs for m rows.
int64_t W4ScratchBytes(int64_t m, int64_t k);

// The ways to run args' shape on `device`, cheapest guess first: printable,
// all feasible, all giving the same bits. Never empty for m >= 1.
std::vector<LaunchSpec> W4Candidates(const W4Weights& w, int64_t m,
                                     W4Epilogue epilogue,
                                     const DeviceInfo& device);

// Whether `spec` can run this shape on `device`.
bool W4Feasible(const W4Weights& w, int64_t m, W4Epilogue epilogue,
                const LaunchSpec& spec, const DeviceInfo& device);

struct W4LaunchOptions {
  // Programmatic dependent launch: the kernel may start, and ask for weights,
  // before the kernel ahead of it in the stream has ended. x, y, bias and
  // scratch are touched only after that one's end.
  bool overlap = false;
};

// Enqueues the multiplication. m = 0 is a no-op. The spec must be feasible;
// CUDA errors are fatal.
void LaunchW4(const W4Args& args, const LaunchSpec& spec,
              const DeviceInfo& device, CUstream_st* stream,
              const W4LaunchOptions& options = {});

}  // namespace nibble::kernels::cuda
