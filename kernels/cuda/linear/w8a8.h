// W8A8: y = x W^T with 8-bit weights and 8-bit activations. What one launch
// computes, how it may be run, and the launcher.
//
// A row of y is the same bits whatever M is and whichever way a device runs it:
// INT8 sums are exact, FP8 sums have one order, k ascending. FP8 sums of
// Hopper's kernels and of those for other devices differ, as the tensor cores
// keep other numbers of bits; INT8 results do not.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/linear/w8a8_layout.h"
#include "kernels/linear.h"
#include "kernels/tensor.h"

struct CUstream_st;  // cudaStream_t, so that host code needs no CUDA header

namespace nibble::kernels::cuda {

// The type of the codes of x and W, and how products are summed.
enum class W8Kind : uint8_t {
  kInt8,      // INT8, exact INT32 sums
  kE4m3,      // FP8 E4M3; sums of 128 products are added up in FP32
  kE4m3Fast,  // FP8 E4M3; summed in the tensor cores, with some 14 bits
  // FP8 E4M3; sums of 128 products times the scale of their block of x and of
  // their block of W are added up in FP32.
  kE4m3Block,
  // INT8; exact INT32 sums of 128 products times the scale of their group of W
  // are added up in FP32.
  kInt8Group,
};
inline constexpr W8Kind kW8Kinds[] = {W8Kind::kInt8, W8Kind::kE4m3,
                                      W8Kind::kE4m3Fast, W8Kind::kE4m3Block,
                                      W8Kind::kInt8Group};
std::string_view W8KindName(W8Kind kind);  // "int8", "e4m3_fast", ...
constexpr bool IsInt8(W8Kind kind) {
  return kind == W8Kind::kInt8 || kind == W8Kind::kInt8Group;
}
// Whether sums of 128 products are added up in FP32.
constexpr bool IsPromoted(W8Kind kind) {
  return kind != W8Kind::kInt8 && kind != W8Kind::kE4m3Fast;
}

// What a scale belongs to. Blocks go with kE4m3Block, groups of W with
// kInt8Group, and neither with anything else.
enum class W8Scaling : uint8_t {
  kTensor,  // [1]
  kRow,     // one a row: of x a token, of W an output channel
  kBlock,   // x: 1 x 128; W: 128 x 128
  kGroup,   // W: 1 x 128
};

// W[n, k] in device memory. Borrowed. By value.
struct W8Weights {
  // [W8PackedRows(n), pitch], rows in the order of W8PackedRow; 16-byte aligned
  const void* codes = nullptr;
  int64_t n = 0;
  int64_t k = 0;
  int64_t pitch = 0;  // bytes, a multiple of 16, >= k
  // [1], [n], [ceil(n / 128), ceil(k / 128)] of blocks or [ceil(k / 128),
  // scales_pitch] of groups, which are 16-byte aligned
  const float* scales = nullptr;
  W8Scaling scaling = W8Scaling::kRow;
  int64_t scales_pitch = 0;  // of groups: >= n, a multiple of 4
  // [n]: the sum of the codes of each row (kInt8), or of the codes times their
  // scales (kInt8Group); wanted where x has zero points.
  const int32_t* sums = nullptr;
  const float* scaled_sums = nullptr;
};

// x[m, k] in device memory: a scale times (code - zero point). Borrowed. By
// value.
struct W8Activations {
  const void* codes = nullptr;  // [m, pitch], 16-byte aligned
  int64_t pitch = 0;            // bytes, a multiple of 16, >= k
  // [1], [m] or [ceil(k / 128), scales_pitch]
  const float* scales = nullptr;
  W8Scaling scaling = W8Scaling::kRow;
  int64_t scales_pitch = 0;        // of blocks: >= m, a multiple of 4
  const int32_t* zeros = nullptr;  // [m], each in [-128, 127], or null; INT8
};

// How silu(gate) * up is stored (activation_codes.h).
enum class W8Result : uint8_t {
  kNumbers,     // of y_dtype
  kInt8Tensor,  // INT8 codes, one scale, which is given
  kE4m3Tensor,  // E4M3 codes, one scale, which is given
  kE4m3Block,   // E4M3 codes, a scale for 1 x 128, which is computed
};

// With gate/up weights y[m, i] = silu(gate i) * (up i), i < f, of sums and
// scales in FP32. Scales of tokens are not computed: they need whole rows,
// which no CTA has (LaunchQuantize makes them). By value.
struct W8SiluMul {
  int64_t f = 0;  // 0: these are no gate/up weights, y is what is multiplied
  W8Result result = W8Result::kNumbers;
  // Read: [1]. kE4m3Block writes [ceil(f / 128), scales_pitch].
  float* scales = nullptr;
  int64_t scales_pitch = 0;  // kE4m3Block: >= m, a multiple of 4
  // Given scales: a float in memory that becomes the greatest |result| if that
  // is greater (NaN counts as greatest), or null. INT8 codes cannot be NaN, so
  // kInt8Tensor must have it; numbers that are not finite get codes of zero.
  float* greatest = nullptr;
};

// One multiplication. All pointers are device memory, borrowed for the launch.
struct W8Args {
  W8Kind kind = W8Kind::kInt8;
  W8Weights w;
  W8Activations x;
  int64_t m = 0;
  void* y = nullptr;             // [m, n]
  int64_t ldy = 0;               // elements
  DType y_dtype = DType::kBF16;  // kBF16, kF16 or kF32
  const float* bias = nullptr;   // [n] or null
  // [m, n] of y_dtype, added last, or null; may be y itself.
  const void* residual = nullptr;
  int64_t ld_residual = 0;  // elements
  // y is then [m, f], W (w.n = W8GateUpRows(f)), its scales and bias in the
  // order of InterleaveGateUp, and there is no residual. Codes: y is 16-byte
  // aligned, ldy a multiple of 16, and bytes from f to the next multiple of 16
  // become zeros.
  W8SiluMul silu_mul = {};
};

// What decides how a multiplication may be run. By value.
struct W8Problem {
  W8Kind kind = W8Kind::kInt8;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;

  std::string ToString() const;  // "int8 m=16 n=14336 k=4096"
};

// The most that INT32 sums of products hold: 128 * 128 each, and 255 * 128
// where a zero point is subtracted.
inline constexpr int64_t kW8MaxInt8K = 131'071;
inline constexpr int64_t kW8MaxZerosK = 65'793;

// UNIMPLEMENTED, naming both, where this build has no kernels of a kind for
// `device`: INT8 needs compute capability 8.0, FP8 8.9.
absl::Status CheckW8Device(W8Kind kind, const DeviceInfo& device);

// The ways to run a problem on `device`, cheapest guess first: printable, all
// feasible, all giving the same bits. Empty where CheckW8Device says why, or a
// size is out of range.
std::vector<LaunchSpec> W8Candidates(const W8Problem& problem,
                                     const DeviceInfo& device);

// Whether `spec` can run this problem on `device`.
bool W8Feasible(const W8Problem& problem, const LaunchSpec& spec,
                const DeviceInfo& device);

// The same of gate/up weights (W8SiluMul), for Hopper only; n of the problem is
// w.n.
std::vector<LaunchSpec> W8SiluMulCandidates(const W8Problem& problem,
                                            const DeviceInfo& device);
bool W8SiluMulFeasible(const W8Problem& problem, const LaunchSpec& spec,
                       const DeviceInfo& device);

struct W8LaunchOptions {
  // Programmatic dependent launch: the kernel may start, and ask for weights,
  // before the kernel ahead of it in the stream has ended. All else is touched
  // only after that one's end.
  bool overlap = false;
};

// Enqueues the multiplication. m = 0 is a no-op. The spec must be feasible;
// CUDA errors are fatal.
void LaunchW8(const W8Args& args, const LaunchSpec& spec,
              const DeviceInfo& device, CUstream_st* stream,
              const W8LaunchOptions& options = {});

}  // namespace nibble::kernels::cuda
