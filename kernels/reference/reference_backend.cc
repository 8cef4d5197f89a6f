#include "kernels/reference/reference_backend.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "kernels/host_buffer.h"
#include "kernels/reference/ops.h"
#include "kernels/reference/reference_linear.h"
#include "kernels/reference/sampling.h"
#include "kernels/scoped_timer.h"

namespace nibble::kernels {
namespace reference {
namespace {

// The linear op of the backend with its time counted. Owned by the model.
class TimedLinear final : public LinearOp {
 public:
  TimedLinear(std::unique_ptr<LinearOp> op, double* total_seconds)
      : op_(std::move(op)), total_seconds_(total_seconds) {}

  int64_t n() const override { return op_->n(); }
  int64_t k() const override { return op_->k(); }
  int64_t packed_bytes() const override { return op_->packed_bytes(); }
  const LinearPlan& plan() const override { return op_->plan(); }
  void Run(const LinearCall& call) const override {
    const ScopedTimer timer(total_seconds_);
    op_->Run(call);
  }
  void GatherRows(std::span<const int32_t> ids, TensorView y) const override {
    op_->GatherRows(ids, y);
  }

 private:
  std::unique_ptr<LinearOp> op_;
  double* total_seconds_;  // the backend's
};

// Scalar operations in row order. Owned by the loader, outlives what it made;
// engine thread only.
class ReferenceBackend final : public Backend {
 public:
  explicit ReferenceBackend(const ReferenceOptions& options)
      : options_(options) {
    NIBBLE_CHECK_GE(options.threads, 1);
  }

  std::string name() const override { return "reference"; }
  std::string description() const override {
    return absl::StrCat("scalar FP32 with FP64 sums, ", options_.threads,
                        options_.threads == 1 ? " thread" : " threads");
  }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t bytes) override {
    return AllocateHostBuffer(bytes);
  }

  absl::StatusOr<std::unique_ptr<LinearOp>> MakeLinear(
      std::span<const WeightView> parts,
      const LinearOptions& options) override {
    NIBBLE_ASSIGN_OR_RETURN(
        std::unique_ptr<LinearOp> op,
        MakeReferenceLinear(parts, options, options_.threads));
    return std::make_unique<TimedLinear>(std::move(op),
                                         &timings_.linear_seconds);
  }

  absl::StatusOr<std::unique_ptr<Activations>> MakeActivations(
      int64_t max_rows, int64_t k) override {
    return FloatActivations::Create(max_rows, k);
  }

  DType kv_dtype() const override { return DType::kF32; }

  void BeginStep(const StepLayout& layout) override {
    NIBBLE_CHECK_EQ(static_cast<size_t>(layout.rows), layout.positions.size());
    NIBBLE_CHECK_EQ(static_cast<size_t>(layout.rows), layout.slots.size());
    NIBBLE_CHECK_EQ(layout.row_begin.size(), layout.page_begin.size());
    NIBBLE_CHECK(!layout.row_begin.empty());
    NIBBLE_CHECK_EQ(layout.row_begin.back(), layout.rows);
    layout_ = layout;
  }

  void RmsNorm(TensorView x, const float* weight, float eps,
               Activations* out) override {
    FloatActivations* to = Output(out, x.rows, x.cols);
    for (int64_t row = 0; row < x.rows; ++row) {
      RmsNormRow(x.RowF32(row), weight, eps, x.cols, to->Row(row));
    }
  }

  void RopeAndWriteKv(TensorView q, TensorView k, TensorView v,
                      const RopeParams& rope, const KvLayerView& kv) override {
    NIBBLE_CHECK_EQ(q.rows, layout_.rows);
    NIBBLE_CHECK_EQ(q.cols % kv.head_dim, 0);
    NIBBLE_CHECK_EQ(k.cols, static_cast<int64_t>(kv.kv_heads) * kv.head_dim);
    NIBBLE_CHECK_EQ(v.cols, k.cols);
    const auto heads = static_cast<int32_t>(q.cols / kv.head_dim);
    for (int32_t row = 0; row < layout_.rows; ++row) {
      const int32_t position = layout_.positions[row];
      RopeRow(rope, position, heads, kv.head_dim, q.RowF32(row));
      RopeRow(rope, position, kv.kv_heads, kv.head_dim, k.RowF32(row));
      WriteKvRow(k.RowF32(row), v.RowF32(row), layout_.slots[row], kv);
    }
  }

  void Attention(TensorView q, const KvLayerView& kv,
                 const AttentionShape& shape, Activations* out) override {
    const ScopedTimer timer(&timings_.attention_seconds);
    NIBBLE_CHECK_EQ(q.rows, layout_.rows);
    FloatActivations* to = Output(out, q.rows, q.cols);
    for (size_t s = 0; s + 1 < layout_.row_begin.size(); ++s) {
      const std::span<const int32_t> page_ids = layout_.page_ids.subspan(
          layout_.page_begin[s],
          layout_.page_begin[s + 1] - layout_.page_begin[s]);
      for (int32_t row = layout_.row_begin[s]; row < layout_.row_begin[s + 1];
           ++row) {
        AttentionOneRow({.q = q.RowF32(row),
                         .position = layout_.positions[row],
                         .page_ids = page_ids},
                        kv, shape, to->Row(row));
      }
    }
  }

  void SiluMul(TensorView gate_up, Activations* out) override {
    const int64_t f = gate_up.cols / 2;
    FloatActivations* to = Output(out, gate_up.rows, f);
    for (int64_t row = 0; row < gate_up.rows; ++row) {
      SiluMulRow(gate_up.RowF32(row), f, to->Row(row));
    }
  }

  void CopyRows(TensorView x, std::span<const int32_t> rows,
                TensorView out) override {
    NIBBLE_CHECK_EQ(out.rows, static_cast<int64_t>(rows.size()));
    NIBBLE_CHECK_EQ(out.cols, x.cols);
    for (size_t i = 0; i < rows.size(); ++i) {
      std::copy_n(x.RowF32(rows[i]), x.cols,
                  out.RowF32(static_cast<int64_t>(i)));
    }
  }

  void Sample(TensorView logits, std::span<const SampleRow> rows,
              std::span<SampleResult> results) override {
    NIBBLE_CHECK_EQ(logits.rows, static_cast<int64_t>(rows.size()));
    NIBBLE_CHECK_EQ(rows.size(), results.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      const float* row = logits.RowF32(static_cast<int64_t>(i));
      sampler_.Sample({row, static_cast<size_t>(logits.cols)}, rows[i],
                      &results[i]);
    }
  }

  void CopyToDevice(void* device, const void* host, int64_t bytes) override {
    std::memcpy(device, host, static_cast<size_t>(bytes));
  }
  void CopyToHost(void* host, const void* device, int64_t bytes) override {
    std::memcpy(host, device, static_cast<size_t>(bytes));
  }

  Timings TakeTimings() override { return std::exchange(timings_, {}); }

 private:
  static FloatActivations* Output(Activations* out, int64_t rows, int64_t k) {
    NIBBLE_CHECK_LE(rows, out->max_rows());
    NIBBLE_CHECK_EQ(k, out->k());
    return static_cast<FloatActivations*>(out);
  }

  ReferenceOptions options_;
  StepLayout layout_;  // borrowed from BeginStep to the end of the step
  Sampler sampler_;
  Timings timings_;
};

}  // namespace
}  // namespace reference

std::unique_ptr<Backend> MakeReferenceBackend(const ReferenceOptions& options) {
  return std::make_unique<reference::ReferenceBackend>(options);
}

}  // namespace nibble::kernels
