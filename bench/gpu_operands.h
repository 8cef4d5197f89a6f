// Random operands of linear layers on the device, made there.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "bench/gpu_timing.h"
#include "kernels/cuda/linear/w4a16.h"
#include "kernels/cuda/runtime.h"
#include "kernels/tensor.h"

namespace nibble::bench {

// A 4-bit format as files and users name it. By value.
struct W4Format {
  std::string_view name;
  kernels::cuda::W4Layout layout;
  float tensor_scale = 1.0f;
};
std::optional<W4Format> W4FormatByName(std::string_view name);
// All names, with commas between.
std::string W4FormatNames();

struct Shape {
  int64_t n = 0;
  int64_t k = 0;
};

// Writes row `row` of the weights, dequantized, to out [k].
using UnpackRow = std::function<void(int64_t row, float* out)>;

// One matrix several times over, each copy random and different, more in all
// than any L2 holds. Move-only; whoever holds it owns the device memory.
class Weights final {
 public:
  // Packed (w4_layout.h); n is a multiple of 16, k of 256.
  static absl::StatusOr<Weights> MakeW4(const W4Format& format, Shape shape,
                                        const kernels::cuda::Stream& stream);
  // Plain [n, k] of kBF16 or kF16, numbers as large as those of MakeW4.
  static absl::StatusOr<Weights> MakeDense(kernels::DType dtype, Shape shape,
                                           const kernels::cuda::Stream& stream);

  const Rotation& rotation() const { return rotation_; }
  // Copy `node` as an operand; MakeW4 only.
  kernels::cuda::W4Weights W4(int64_t node) const;
  // Copies rows of copy 0 to the host: [row, row + rows), 16 at a time (W4).
  UnpackRow ReadRows(int64_t begin, int64_t rows) const;

 private:
  static absl::StatusOr<Weights> Allocate(int64_t bytes);

  Shape shape_;
  std::optional<W4Format> format_;  // of MakeW4
  kernels::DType dtype_ = kernels::DType::kBF16;
  kernels::cuda::DeviceBuffer buffer_;
  Rotation rotation_;
};

}  // namespace nibble::bench
