// W4A8: y = x W^T with 4-bit weights and INT8 or FP8 activations, for Hopper.
// What one launch computes, how it may be run, and the launcher.
//
// A row of y is the same bits whatever M is and whichever way it is run: sums
// of products are integers or, of FP8, the tensor cores' of one group, and what
// is added in FP32 has one order, k ascending.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/linear/w4a8_layout.h"
#include "kernels/linear.h"
#include "kernels/tensor.h"

struct CUstream_st;  // cudaStream_t, so that host code needs no CUDA header

namespace nibble::kernels::cuda {

std::string W4a8Name(W4a8Format format);  // "rerounded_g128", "sub_scale", ...

// W[n, k] in device memory (PackedW4a8). Borrowed. By value.
struct W4a8Weights {
  W4a8Format format{W4a8Kind::kScaleMin, 128};
  const std::byte* blocks = nullptr;   // 16-byte aligned
  const float* row_scales = nullptr;   // [n], kRerounded
  const float* row_offsets = nullptr;  // [n], HasOffsets
  int64_t n = 0;
  int64_t k = 0;
};

// x[m, k] in device memory: a scale of the row times an 8-bit code. Borrowed.
// By value.
struct W4a8Activations {
  // int8_t; where the format HasOffsets uint8_t, the INT8 code + 128
  // (LaunchW4a8Prepare); kE4m3: E4M3. [m, pitch], 16-byte aligned.
  const std::byte* codes = nullptr;
  int64_t pitch = 0;              // bytes, a multiple of 16, >= k
  const float* scales = nullptr;  // [m]
  // Of formats with minimums: [m, W4a8SumsPitch(format, k)] bytes, 16-byte
  // aligned, made by LaunchW4a8Prepare.
  const std::byte* sums = nullptr;
};

// One multiplication. All pointers are device memory, borrowed for the launch.
struct W4a8Args {
  W4a8Weights w;
  W4a8Activations x;
  int64_t m = 0;
  void* y = nullptr;             // [m, n]
  int64_t ldy = 0;               // elements
  DType y_dtype = DType::kBF16;  // kBF16, kF16 or kF32
  const float* bias = nullptr;   // [n] or null
  // [m, n] of y's type, added before rounding, or null; may be y itself.
  const void* residual = nullptr;
  int64_t ld_residual = 0;  // elements
};

// What decides how a multiplication may be run. By value.
struct W4a8Problem {
  W4a8Format format{W4a8Kind::kScaleMin, 128};
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;

  std::string ToString() const;  // "sub_scale m=16 n=14336 k=4096"
};

// k beyond which an INT32 sum of products could wrap around: 128 * 128 each
// where codes are rounded to 8 bits.
inline constexpr int64_t kW4a8MaxK = 131'071;

// The ways to run a problem on `device`, cheapest guess first: printable, all
// feasible, all giving the same bits. Empty where the device is no Hopper GPU,
// this build has no kernels for it, or a size is out of range.
std::vector<LaunchSpec> W4a8Candidates(const W4a8Problem& problem,
                                       const DeviceInfo& device);

// Whether `spec` can run this problem on `device`.
bool W4a8Feasible(const W4a8Problem& problem, const LaunchSpec& spec,
                  const DeviceInfo& device);

struct W4a8LaunchOptions {
  // Programmatic dependent launch: the kernel may start, and ask for weights,
  // before the kernel ahead of it in the stream has ended. All else is touched
  // only after that one's end.
  bool overlap = false;
};

// Enqueues the multiplication. m = 0 is a no-op. The spec must be feasible;
// CUDA errors are fatal.
void LaunchW4a8(const W4a8Args& args, const LaunchSpec& spec,
                const DeviceInfo& device, CUstream_st* stream,
                const W4a8LaunchOptions& options = {});

// Codes of x[m, k] as formats with minimums want them. All pointers are device
// memory, 16-byte aligned, borrowed for the launch.
struct W4a8PrepareArgs {
  const std::byte* codes = nullptr;  // [m, pitch], int8_t; kE4m3: E4M3
  int64_t pitch = 0;                 // bytes, a multiple of 16, >= k
  int64_t m = 0;
  int64_t k = 0;
  // HasOffsets: [m, pitch], uint8_t, codes + 128; may be `codes`.
  std::byte* to = nullptr;
  std::byte* sums = nullptr;  // [m, W4a8SumsPitch(format, k)]
};
// Enqueues it. m = 0 is a no-op; CUDA errors are fatal.
void LaunchW4a8Prepare(const W4a8PrepareArgs& args, W4a8Format format,
                       CUstream_st* stream);

}  // namespace nibble::kernels::cuda
