// Linear layers of the reference backend: weights dequantized at load, FP64
// dot products.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/linear.h"

namespace nibble::kernels::reference {

// FP32 [max_rows, k] in host memory. Owned by the model, engine thread only.
class FloatActivations final : public Activations {
 public:
  static absl::StatusOr<std::unique_ptr<FloatActivations>> Create(
      int64_t max_rows, int64_t k);

  float* Row(int64_t row);
  const float* Row(int64_t row) const;

 private:
  FloatActivations(int64_t max_rows, int64_t k, std::unique_ptr<float[]> data);

  std::unique_ptr<float[]> data_;
};

// See Backend::MakeLinear. Rows of W are spread over `threads`.
absl::StatusOr<std::unique_ptr<LinearOp>> MakeReferenceLinear(
    std::span<const WeightView> parts, const LinearOptions& options,
    int threads);

}  // namespace nibble::kernels::reference
