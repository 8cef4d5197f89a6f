#include "bench/rounding_backend.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "kernels/reference/reference_linear.h"

namespace nibble::bench {
namespace {

using kernels::Activations;
using kernels::LinearCall;
using kernels::LinearOp;
using kernels::LinearOptions;
using kernels::LinearPlan;
using kernels::TensorView;
using kernels::reference::FloatActivations;

// A reference layer behind a rounding. Owned by the model.
class RoundingLinear final : public LinearOp {
 public:
  RoundingLinear(std::unique_ptr<LinearOp> inner,
                 std::unique_ptr<FloatActivations> rounded, std::string name,
                 const RoundingBackend::Round& round)
      : inner_(std::move(inner)),
        rounded_(std::move(rounded)),
        name_(std::move(name)),
        round_(round) {}

  int64_t n() const override { return inner_->n(); }
  int64_t k() const override { return inner_->k(); }
  int64_t packed_bytes() const override { return inner_->packed_bytes(); }
  const LinearPlan& plan() const override { return inner_->plan(); }
  void GatherRows(std::span<const int32_t> ids, TensorView y) const override {
    inner_->GatherRows(ids, y);
  }

  void Run(const LinearCall& call) const override {
    const auto& x = static_cast<const FloatActivations&>(*call.x);
    Matrix matrix{call.y.rows, k(), {}};
    matrix.data.reserve(matrix.rows * matrix.cols);
    for (int64_t row = 0; row < matrix.rows; ++row) {
      const float* const from = x.Row(call.row_begin + row);
      matrix.data.insert(matrix.data.end(), from, from + matrix.cols);
    }
    round_(name_, matrix);
    for (int64_t row = 0; row < matrix.rows; ++row) {
      std::ranges::copy(matrix.Row(row), rounded_->Row(row));
    }
    LinearCall rounded = call;
    rounded.x = rounded_.get();
    rounded.row_begin = 0;
    inner_->Run(rounded);
  }

 private:
  std::unique_ptr<LinearOp> inner_;
  std::unique_ptr<FloatActivations> rounded_;
  std::string name_;
  const RoundingBackend::Round& round_;
};

}  // namespace

RoundingBackend::RoundingBackend(std::unique_ptr<kernels::Backend> reference,
                                 Round round)
    : inner_(std::move(reference)), round_(std::move(round)) {}

std::string RoundingBackend::name() const { return inner_->name(); }
std::string RoundingBackend::description() const {
  return inner_->description();
}

absl::StatusOr<std::unique_ptr<kernels::Buffer>> RoundingBackend::Allocate(
    int64_t bytes) {
  return inner_->Allocate(bytes);
}

absl::StatusOr<std::unique_ptr<LinearOp>> RoundingBackend::MakeLinear(
    std::span<const kernels::WeightView> parts, const LinearOptions& options) {
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<LinearOp> linear,
                          inner_->MakeLinear(parts, options));
  if (!options.multiply) return linear;
  NIBBLE_ASSIGN_OR_RETURN(
      std::unique_ptr<FloatActivations> rounded,
      FloatActivations::Create(options.max_rows, linear->k()));
  return std::make_unique<RoundingLinear>(std::move(linear), std::move(rounded),
                                          options.name, round_);
}

absl::StatusOr<std::unique_ptr<Activations>> RoundingBackend::MakeActivations(
    int64_t max_rows, int64_t k) {
  return inner_->MakeActivations(max_rows, k);
}

kernels::DType RoundingBackend::kv_dtype() const { return inner_->kv_dtype(); }
void RoundingBackend::BeginStep(const kernels::StepLayout& layout) {
  inner_->BeginStep(layout);
}
void RoundingBackend::RmsNorm(TensorView x, const float* weight, float eps,
                              Activations* out) {
  inner_->RmsNorm(x, weight, eps, out);
}
void RoundingBackend::RopeAndWriteKv(TensorView q, TensorView k, TensorView v,
                                     const kernels::RopeParams& rope,
                                     const kernels::KvLayerView& kv) {
  inner_->RopeAndWriteKv(q, k, v, rope, kv);
}
void RoundingBackend::Attention(TensorView q, const kernels::KvLayerView& kv,
                                const kernels::AttentionShape& shape,
                                Activations* out) {
  inner_->Attention(q, kv, shape, out);
}
void RoundingBackend::SiluMul(TensorView gate_up, Activations* out) {
  inner_->SiluMul(gate_up, out);
}
void RoundingBackend::CopyRows(TensorView x, std::span<const int32_t> rows,
                               TensorView out) {
  inner_->CopyRows(x, rows, out);
}
void RoundingBackend::Sample(TensorView logits,
                             std::span<const kernels::SampleRow> rows,
                             std::span<kernels::SampleResult> results) {
  inner_->Sample(logits, rows, results);
}
void RoundingBackend::CopyToDevice(void* device, const void* host,
                                   int64_t bytes) {
  inner_->CopyToDevice(device, host, bytes);
}
void RoundingBackend::CopyToHost(void* host, const void* device,
                                 int64_t bytes) {
  inner_->CopyToHost(host, device, bytes);
}
kernels::Backend::Timings RoundingBackend::TakeTimings() {
  return inner_->TakeTimings();
}

}  // namespace nibble::bench
