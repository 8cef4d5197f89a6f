// Random 8-bit operands of linear layers, on the device and on the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/gpu_operands.h"
#include "bench/gpu_timing.h"
#include "kernels/cuda/linear/w8a8.h"
#include "kernels/cuda/runtime.h"
#include "kernels/reference/w8a8_gemm.h"

namespace nibble::bench {

// x [max_m, k] and W [n, k], the latter several times over, more in all than
// any L2 holds, with scales of every kind. INT8 codes are uniform, E4M3 codes
// those of normal numbers. Move-only; whoever holds it owns the memory.
//
// Rows of W are numbered as they lie in memory: packed rows of our kernels,
// which number scales as y's columns. `scaling` is that of both, or of W: with
// groups of W x has a scale a row.
class CodedOperands final {
 public:
  // n is a multiple of 32, k of 512.
  static absl::StatusOr<CodedOperands> Make(
      kernels::reference::CodeType type, Shape shape, int64_t max_m,
      const kernels::cuda::Stream& stream);

  const Rotation& rotation() const { return rotation_; }
  const void* x() const { return x_device_.data(); }
  const float* XScales(kernels::cuda::W8Scaling scaling) const;
  const float* WScales(kernels::cuda::W8Scaling scaling) const;
  // Floats between a block's scales of x and the next block's.
  static int64_t ScalesPitch(int64_t m) { return (m + 3) / 4 * 4; }

  // With copy `node` of W, without y.
  kernels::cuda::W8Args Args(kernels::cuda::W8Kind kind,
                             kernels::cuda::W8Scaling scaling, int64_t m,
                             int64_t node) const;

  // The same on the host; copy 0 of W. `packed`: a row has the scale of the
  // column of y that our kernels make of it, else the one of its number.
  kernels::reference::CodedMatrix X(kernels::cuda::W8Scaling scaling,
                                    int64_t m) const;
  kernels::reference::CodedMatrix W(kernels::cuda::W8Scaling scaling,
                                    bool packed) const;

 private:
  // Floats on both sides. Move-only.
  struct Scales {
    std::vector<float> host;
    kernels::cuda::DeviceBuffer device;
  };
  static absl::StatusOr<Scales> MakeScales(int64_t count, uint64_t seed);
  absl::Status MakeWeights(const kernels::cuda::Stream& stream);

  kernels::reference::CodeType type_ = kernels::reference::CodeType::kInt8;
  Shape shape_;
  std::vector<uint8_t> x_, w_;  // [max_m, k], [n, k]
  kernels::cuda::DeviceBuffer x_device_, w_device_;
  Rotation rotation_;
  // w_rows_ and w_groups_ in the order of packed rows
  std::vector<float> packed_w_rows_, packed_w_groups_;
  Scales x_rows_, w_rows_, x_blocks_, w_blocks_;  // a tensor's: the first row's
  Scales w_groups_;                               // [k / 128, n]
};

}  // namespace nibble::bench
