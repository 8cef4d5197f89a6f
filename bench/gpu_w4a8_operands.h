// Random operands of W4A8 multiplications, on the device and on the host.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/gpu_operands.h"
#include "bench/gpu_timing.h"
#include "kernels/cuda/linear/w4a8.h"
#include "kernels/cuda/linear/w4a8_pack.h"
#include "kernels/cuda/runtime.h"

namespace nibble::bench {

// Random weights as files have them: "int4-g128" (with minimums), "int4s-g128",
// "q4_0" (both symmetric) or "q4_k". n rows of k.
kernels::cuda::W4Numbers RandomNumbers(std::string_view name, Shape shape);

// x [max_m, k]: uniform INT8 codes, the same rounded to E4M3, a scale a row.
// Move-only; whoever holds it owns the memory.
class W4a8Inputs final {
 public:
  static absl::StatusOr<W4a8Inputs> Make(Shape shape, int64_t max_m);

  const std::byte* device() const { return codes_device_.data(); }
  const std::byte* fp8() const { return fp8_device_.data(); }
  const float* scales() const { return scales_device_.as<float>(); }
  std::span<const int8_t> Row(int64_t row) const {
    return std::span(codes_).subspan(row * k_, k_);
  }
  // What E4M3 codes stand for.
  std::span<const float> Fp8Row(int64_t row) const {
    return std::span(fp8_).subspan(row * k_, k_);
  }
  double Scale(int64_t row) const { return scales_[row]; }

 private:
  int64_t k_ = 0;
  std::vector<int8_t> codes_;
  std::vector<float> fp8_;
  std::vector<float> scales_;
  kernels::cuda::DeviceBuffer codes_device_, fp8_device_, scales_device_;
};

// Numbers packed for a format, several times over, more in all than any L2
// holds. Move-only; whoever holds it owns the memory.
class W4a8Operand final {
 public:
  static absl::StatusOr<W4a8Operand> Make(
      const kernels::cuda::W4Numbers& numbers,
      kernels::cuda::W4a8Format format);

  const Rotation& rotation() const { return rotation_; }
  kernels::cuda::W4a8Weights Weights(int64_t node) const;
  const kernels::cuda::PackedW4a8& packed() const { return packed_; }

 private:
  kernels::cuda::PackedW4a8 packed_;
  kernels::cuda::DeviceBuffer blocks_, row_scales_, row_offsets_;
  Rotation rotation_;
};

}  // namespace nibble::bench
