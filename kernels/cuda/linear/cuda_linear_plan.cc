// How CudaLinear comes by its plans.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cuda/linear/cuda_activations.h"
#include "kernels/cuda/linear/cuda_linear.h"
#include "kernels/cuda/linear/layer_plan.h"

namespace nibble::kernels::cuda {
namespace {

std::string LayoutName(const W4Layout& layout) {
  const char* scale = "";
  switch (layout.scale) {
    case W4Scale::kScale:
      scale = "scale";
      break;
    case W4Scale::kScaleMin:
      scale = "min";
      break;
    case W4Scale::kScaleZero:
      scale = "zero";
      break;
    case W4Scale::kQ4K:
      scale = "q4k";
      break;
    case W4Scale::kE8m0:
      scale = "e8m0";
      break;
    case W4Scale::kE4m3:
      scale = "e4m3";
      break;
  }
  return absl::StrCat(layout.code == W4Code::kInt4 ? "int4-" : "e2m1-", scale,
                      "-g", layout.group);
}

}  // namespace

LinearPlan CudaLinear::MakePlan(const Segment& segment) const {
  LayerPlanProblem problem{
      .layout = LayoutName(segment.weights.layout),
      .x_dtype = context_.x_dtype == DType::kBF16 ? "bf16" : "f16",
      .epilogue = epilogue_ == W4Epilogue::kSiluMul ? "silu_mul" : "store",
      .n = segment.weights.n,
      .k = segment.weights.k,
      .max_rows = max_rows_,
      .candidates =
          [&](int64_t rows) {
            return W4Candidates(segment.weights, rows, epilogue_,
                                context_.device);
          },
      .feasible =
          [&](int64_t rows, const LaunchSpec& spec) {
            return W4Feasible(segment.weights, rows, epilogue_, spec,
                              context_.device);
          },
      .make_enqueue = nullptr};
  DeviceBuffer x, y, scratch;
  problem.make_enqueue = [&]() -> absl::StatusOr<LayerPlanProblem::Enqueue> {
    W4Args args{.w = segment.weights,
                .ldx = ActivationPitch(k_),
                .x_dtype = context_.x_dtype,
                .ldy = segment.columns,
                .y_dtype = context_.x_dtype,
                .n_out = segment.columns,
                .epilogue = epilogue_};
    const int64_t bytes = ElementBytes(args.x_dtype);
    NIBBLE_ASSIGN_OR_RETURN(
        x, MakeFilled(max_rows_ * args.ldx * bytes, *context_.stream));
    NIBBLE_ASSIGN_OR_RETURN(y,
                            DeviceBuffer::Make(max_rows_ * args.ldy * bytes));
    NIBBLE_ASSIGN_OR_RETURN(scratch,
                            DeviceBuffer::Make(W4ScratchBytes(max_rows_, k_)));
    args.x = x.data();
    args.y = y.data();
    args.scratch = scratch.data();
    return [this, args](int64_t rows, const LaunchSpec& spec) mutable {
      args.m = rows;
      LaunchW4(args, spec, context_.device, context_.stream->get());
    };
  };
  return MakeLayerPlan(problem, context_);
}

}  // namespace nibble::kernels::cuda
