// A backend whose linear layers see their inputs rounded to 8 bits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "bench/rounding.h"
#include "kernels/backend.h"

namespace nibble::bench {

// The reference backend, but that each linear layer multiplies what `round`
// makes of its input. Owned by main, its thread only; `round` outlives what it
// made.
class RoundingBackend final : public kernels::Backend {
 public:
  // Of the input [rows of a call, k] of the layer of that name, in place.
  using Round = std::function<void(std::string_view layer, Matrix& x)>;

  RoundingBackend(std::unique_ptr<kernels::Backend> reference, Round round);

  std::string name() const override;
  std::string description() const override;
  absl::StatusOr<std::unique_ptr<kernels::Buffer>> Allocate(
      int64_t bytes) override;
  absl::StatusOr<std::unique_ptr<kernels::LinearOp>> MakeLinear(
      std::span<const kernels::WeightView> parts,
      const kernels::LinearOptions& options) override;
  absl::StatusOr<std::unique_ptr<kernels::Activations>> MakeActivations(
      int64_t max_rows, int64_t k) override;
  kernels::DType kv_dtype() const override;
  void BeginStep(const kernels::StepLayout& layout) override;
  void RmsNorm(kernels::TensorView x, const float* weight, float eps,
               kernels::Activations* out) override;
  void RopeAndWriteKv(kernels::TensorView q, kernels::TensorView k,
                      kernels::TensorView v, const kernels::RopeParams& rope,
                      const kernels::KvLayerView& kv) override;
  void Attention(kernels::TensorView q, const kernels::KvLayerView& kv,
                 const kernels::AttentionShape& shape,
                 kernels::Activations* out) override;
  void SiluMul(kernels::TensorView gate_up, kernels::Activations* out) override;
  void CopyRows(kernels::TensorView x, std::span<const int32_t> rows,
                kernels::TensorView out) override;
  void Sample(kernels::TensorView logits,
              std::span<const kernels::SampleRow> rows,
              std::span<kernels::SampleResult> results) override;
  void CopyToDevice(void* device, const void* host, int64_t bytes) override;
  void CopyToHost(void* host, const void* device, int64_t bytes) override;
  Timings TakeTimings() override;

 private:
  std::unique_ptr<kernels::Backend> inner_;
  Round round_;
};

}  // namespace nibble::bench
