// Linear layers of the CUDA backend: 4-bit weights, 16-bit activations, and for
// the wide path, if wanted, the same weights in 8 bits, or in 4 for 8-bit
// activations.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/linear/linear_context.h"
#include "kernels/cuda/linear/w4a16.h"
#include "kernels/cuda/linear/w4a8_linear.h"
#include "kernels/cuda/linear/wide_linear.h"
#include "kernels/cuda/runtime.h"
#include "kernels/linear.h"
#include "kernels/tensor.h"
#include "kernels/weight_view.h"

namespace nibble::kernels::cuda {

// Packed matrices stacked along n. Owned by the model; immutable after Create;
// Run and GatherRows are called by the engine thread only and enqueue work on
// the context's stream.
//
// Parts of one layout (and tensor scale, and order of columns) run in one
// launch; where neighbours differ, as in files that mix formats, each run of
// equals has a launch of its own.
class CudaLinear final : public LinearOp {
 public:
  // INVALID_ARGUMENT names a tensor whose format or shape it cannot run,
  // RESOURCE_EXHAUSTED what there is no memory for.
  static absl::StatusOr<std::unique_ptr<CudaLinear>> Create(
      std::span<const WeightView> parts, const LinearOptions& options,
      const CudaLinearContext& context);

  int64_t n() const override { return n_; }
  int64_t k() const override { return k_; }
  int64_t packed_bytes() const override;
  // Of the first launch.
  const LinearPlan& plan() const override { return segments_.front().plan; }
  const LinearPlan* wide_plan() const override {
    if (wide_.has_value()) return &wide_->plan();
    const auto& wide4 = segments_.front().wide;
    return wide4.has_value() ? &wide4->plan() : nullptr;
  }
  // y is device memory, kBF16, kF16 or kF32; x a CudaActivations of the
  // context's type. May be captured.
  void Run(const LinearCall& call) const override;
  // y is device memory as above. Reads `ids` before it returns; not to be
  // captured.
  void GatherRows(std::span<const int32_t> ids, TensorView y) const override;

 private:
  // Parts that run in one launch.
  struct Segment {
    DeviceBuffer blocks;
    W4Weights weights;         // in `blocks`
    DeviceBuffer x_perm;       // int32 [k], or empty
    int64_t first_column = 0;  // of y
    int64_t columns = 0;
    LinearPlan plan;
    std::optional<W4a8Linear> wide;  // WidePacking::kInt4
  };

  explicit CudaLinear(const CudaLinearContext& context) : context_(context) {}
  absl::Status AddSegment(std::span<const WeightView> parts,
                          const LinearOptions& options);
  absl::Status ReserveMemory(const LinearOptions& options);
  // The plan of a segment: kept from earlier, or measured now.
  LinearPlan MakePlan(const Segment& segment) const;
  W4Args ArgsFor(const Segment& segment, const LinearCall& call) const;
  void RunWide(const Segment& segment, const LinearCall& call) const;

  CudaLinearContext context_;
  W4Epilogue epilogue_ = W4Epilogue::kStore;  // or kSiluMul
  int64_t n_ = 0;
  int64_t k_ = 0;
  int64_t max_rows_ = 0;
  std::vector<Segment> segments_;
  std::optional<WideLinear> wide_;  // WidePacking::kInt8 and kE4m3
  DeviceBuffer bias_;               // float [n], or empty
  DeviceBuffer ids_;                // int32 [max_rows], or empty
  // Where in the scratch the kernels' own begins: behind the reordered x.
  int64_t kernel_scratch_offset_ = 0;
};

// CudaLinear::Create as Backend::MakeLinear wants it.
absl::StatusOr<std::unique_ptr<LinearOp>> MakeCudaLinear(
    std::span<const WeightView> parts, const LinearOptions& options,
    const CudaLinearContext& context);

}  // namespace nibble::kernels::cuda
