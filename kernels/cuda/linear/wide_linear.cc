#include "kernels/cuda/linear/wide_linear.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checked_math.h"
#include "base/status.h"
#include "kernels/cuda/linear/encode_rows.h"
#include "kernels/cuda/linear/layer_plan.h"
#include "kernels/cuda/linear/w8a8_layout.h"
#include "kernels/cuda/linear/w8a8_pack.h"
#include "kernels/cuda/quantize/quantize.h"
#include "kernels/weight_quantize.h"

namespace nibble::kernels::cuda {
namespace {

constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));
constexpr int64_t kScratchAlignment = 256;

// Where the scales of encoded x begin in scratch; its codes come first.
int64_t ScalesAt(int64_t rows, int64_t k) {
  return RoundUp(rows * W8Pitch(k), kScratchAlignment);
}

}  // namespace

absl::StatusOr<WideLinear> WideLinear::Create(
    std::span<const WeightView> parts, const LinearOptions& options,
    const CudaLinearContext& context) {
  NIBBLE_CHECK(!parts.empty() && options.wide != WidePacking::kNone);
  WideLinear wide(options.wide);
  wide.weights_.k = parts[0].k;
  for (const WeightView& part : parts) wide.weights_.n += part.n;
  if (const absl::Status status =
          CheckQuantizeShape(options.max_rows, wide.weights_.k);
      !status.ok()) {
    return AnnotateLayer(status, options, "8-bit packing");
  }
  if (const absl::Status status = CheckW8Device(wide.kind(), context.device);
      !status.ok()) {
    return AnnotateLayer(status, options, "8-bit packing");
  }
  const W8Problem problem = wide.ProblemOf(options.max_rows);
  if (W8Candidates(problem, context.device).empty()) {
    return absl::UnimplementedError(
        absl::StrCat("linear layer '", options.name, "': no kernel for ",
                     problem.ToString(), " on ", context.device.name));
  }
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  for (const WeightView& part : parts) {
    const absl::StatusOr<ByteWeight> bytes = QuantizeWeight(
        part, {.code = options.wide == WidePacking::kInt8 ? ByteCode::kInt8
                                                          : ByteCode::kE4m3,
               .scaling = ByteScaling::kChannel});
    if (!bytes.ok()) {
      return AnnotateLayer(bytes.status(), options, std::string(part.name));
    }
    codes.insert(codes.end(), bytes->codes.begin(), bytes->codes.end());
    scales.insert(scales.end(), bytes->scales.begin(), bytes->scales.end());
  }
  const PackedW8 packed =
      PackW8(wide.kind(), codes, wide.weights_.n, wide.weights_.k);
  NIBBLE_ASSIGN_OR_RETURN(
      wide.codes_, UploadForLayer(packed.codes.data(),
                                  static_cast<int64_t>(packed.codes.size()),
                                  *context.stream, options, "8-bit weights"));
  NIBBLE_ASSIGN_OR_RETURN(
      wide.scales_,
      UploadForLayer(scales.data(), wide.weights_.n * kFloatBytes,
                     *context.stream, options, "scales of 8-bit weights"));
  wide.weights_.codes = wide.codes_.data();
  wide.weights_.pitch = packed.pitch;
  wide.weights_.scales = wide.scales_.as<const float>();
  wide.plan_ = wide.MakePlan(options.max_rows, context);
  return wide;
}

int64_t WideLinear::ScratchBytes(int64_t max_rows, int64_t k) {
  return ScalesAt(max_rows, k) + max_rows * kFloatBytes;
}

W8Problem WideLinear::ProblemOf(int64_t rows) const {
  return {.kind = kind(), .m = rows, .n = weights_.n, .k = weights_.k};
}

LinearPlan WideLinear::MakePlan(int64_t max_rows,
                                const CudaLinearContext& context) const {
  const std::string name = packing_ == WidePacking::kInt8 ? "int8" : "e4m3";
  LayerPlanProblem problem{
      .layout = absl::StrCat(name, "-row"),
      .x_dtype = name,
      .epilogue = "store",
      .n = weights_.n,
      .k = weights_.k,
      .max_rows = max_rows,
      .candidates =
          [&](int64_t rows) {
            return W8Candidates(ProblemOf(rows), context.device);
          },
      .feasible =
          [&](int64_t rows, const LaunchSpec& spec) {
            return W8Feasible(ProblemOf(rows), spec, context.device);
          },
      .make_enqueue = nullptr};
  DeviceBuffer x, scales, y;
  problem.make_enqueue = [&]() -> absl::StatusOr<LayerPlanProblem::Enqueue> {
    const int64_t pitch = W8Pitch(weights_.k);
    const int64_t y_bytes = ElementBytes(context.x_dtype);
    NIBBLE_ASSIGN_OR_RETURN(x, MakeFilled(max_rows * pitch, *context.stream));
    NIBBLE_ASSIGN_OR_RETURN(
        scales, MakeFilled(max_rows * kFloatBytes, *context.stream));
    NIBBLE_ASSIGN_OR_RETURN(
        y, DeviceBuffer::Make(max_rows * weights_.n * y_bytes));
    W8Args args{.kind = kind(),
                .w = weights_,
                .x = {.codes = x.data(),
                      .pitch = pitch,
                      .scales = scales.as<const float>()},
                .y = y.data(),
                .ldy = weights_.n,
                .y_dtype = context.x_dtype};
    return [args, &context](int64_t rows, const LaunchSpec& spec) mutable {
      args.m = rows;
      LaunchW8(args, spec, context.device, context.stream->get());
    };
  };
  return MakeLayerPlan(problem, context);
}

void WideLinear::Run(const LinearCall& call, const float* bias,
                     const CudaLinearContext& context) const {
  const int64_t rows = call.y.rows;
  W8Args args{.kind = kind(),
              .w = weights_,
              .x = {.pitch = W8Pitch(weights_.k)},
              .m = rows,
              .y = call.y.data,
              .ldy = call.y.row_stride,
              .y_dtype = call.y.dtype,
              .bias = bias};
  if (call.epilogue == Epilogue::kAdd) {
    args.residual = call.y.data;
    args.ld_residual = call.y.row_stride;
  }
  std::byte* const scratch = context.scratch->data();
  const EncodedRows x = EncodeRows(
      call, packing_, weights_.k, scratch,
      reinterpret_cast<float*>(scratch + ScalesAt(rows, weights_.k)), context);
  args.x.codes = x.codes;
  args.x.scales = x.scales;
  LaunchW8(args, plan_.ForRows(rows), context.device, context.stream->get(),
           {.overlap = context.overlap});
}

}  // namespace nibble::kernels::cuda
