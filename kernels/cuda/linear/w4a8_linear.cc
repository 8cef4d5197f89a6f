#include "kernels/cuda/linear/w4a8_linear.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/status.h"
#include "kernels/cuda/linear/encode_rows.h"
#include "kernels/cuda/linear/layer_plan.h"
#include "kernels/cuda/linear/w8a8_layout.h"
#include "kernels/cuda/quantize/quantize.h"

namespace nibble::kernels::cuda {
namespace {

constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));
constexpr int64_t kScratchAlignment = 256;
constexpr int kLeastGroup = 32;

// Where things are in scratch: unsigned codes of x [rows, W8Pitch(k)], sums of
// its groups, and scales of rows where x is encoded here. By value.
struct Scratch {
  int64_t sums, scales, bytes;

  // sums_pitch: bytes of a row's sums.
  Scratch(int64_t rows, int64_t k, int64_t sums_pitch)
      : sums(RoundUp(rows * W8Pitch(k), kScratchAlignment)),
        scales(sums + RoundUp(rows * sums_pitch, kScratchAlignment)),
        bytes(scales + rows * kFloatBytes) {}
};

absl::Status Unimplemented(const LinearOptions& options,
                           const std::string& why) {
  return absl::UnimplementedError(
      absl::StrCat("linear layer '", options.name, "': ", why));
}

}  // namespace

W4a8Format W4a8FormatFor(const W4Numbers& numbers) {
  if (!numbers.sub_scales.empty()) return {W4a8Kind::kSubScaleFloat, 32};
  return {W4a8Kind::kScaleMin, numbers.group == 128 ? 128 : kLeastGroup};
}

absl::StatusOr<W4a8Linear> W4a8Linear::Create(
    const PackedW4& weights, const LinearOptions& options,
    const CudaLinearContext& context) {
  if (!weights.x_perm.empty()) {
    return Unimplemented(options,
                         "no wide path on 4-bit codes whose columns have an "
                         "order of their own");
  }
  if (const absl::Status status =
          CheckQuantizeShape(options.max_rows, weights.k);
      !status.ok()) {
    return AnnotateLayer(status, options, "codes of activations");
  }
  const auto numbers = TakeApart(weights, context.pack_threads);
  if (!numbers.ok()) {
    return Unimplemented(options, std::string(numbers.status().message()));
  }
  const W4a8Format format = W4a8FormatFor(*numbers);
  W4a8Linear made;
  made.weights_ = {.format = format, .n = weights.n, .k = weights.k};
  const W4a8Problem problem = made.ProblemOf(options.max_rows);
  if (W4a8Candidates(problem, context.device).empty()) {
    return Unimplemented(
        options, absl::StrCat("no kernel for ", problem.ToString(), " on ",
                              context.device.name));
  }
  const auto packed = PackW4a8(*numbers, format, context.pack_threads);
  if (!packed.ok()) {
    return Unimplemented(options, std::string(packed.status().message()));
  }
  NIBBLE_ASSIGN_OR_RETURN(
      made.blocks_, UploadForLayer(packed->blocks.data(),
                                   static_cast<int64_t>(packed->blocks.size()),
                                   *context.stream, options, "4-bit weights"));
  NIBBLE_ASSIGN_OR_RETURN(
      made.offsets_,
      UploadForLayer(packed->row_offsets.data(), weights.n * kFloatBytes,
                     *context.stream, options, "offsets of rows"));
  made.weights_.blocks = made.blocks_.data();
  made.weights_.row_offsets = made.offsets_.as<const float>();
  made.plan_ = made.MakePlan(options.max_rows, context);
  return made;
}

int64_t W4a8Linear::ScratchBytes(int64_t max_rows, int64_t k) {
  // Of the smallest groups there are the most sums.
  return Scratch(max_rows, k,
                 W4a8SumsPitch({W4a8Kind::kScaleMin, kLeastGroup}, k))
      .bytes;
}

LinearPlan W4a8Linear::MakePlan(int64_t max_rows,
                                const CudaLinearContext& context) const {
  LayerPlanProblem problem{
      .layout = absl::StrCat("w4a8-", W4a8Name(weights_.format)),
      .x_dtype = "int8",
      .epilogue = "store",
      .n = weights_.n,
      .k = weights_.k,
      .max_rows = max_rows,
      .candidates =
          [&](int64_t rows) {
            return W4a8Candidates(ProblemOf(rows), context.device);
          },
      .feasible =
          [&](int64_t rows, const LaunchSpec& spec) {
            return W4a8Feasible(ProblemOf(rows), spec, context.device);
          },
      .make_enqueue = nullptr};
  DeviceBuffer x, sums, scales, y;
  problem.make_enqueue = [&]() -> absl::StatusOr<LayerPlanProblem::Enqueue> {
    const int64_t pitch = W8Pitch(weights_.k);
    NIBBLE_ASSIGN_OR_RETURN(x, MakeFilled(max_rows * pitch, *context.stream));
    NIBBLE_ASSIGN_OR_RETURN(
        sums, MakeFilled(max_rows * W4a8SumsPitch(weights_.format, weights_.k),
                         *context.stream));
    NIBBLE_ASSIGN_OR_RETURN(
        scales, MakeFilled(max_rows * kFloatBytes, *context.stream));
    NIBBLE_ASSIGN_OR_RETURN(y,
                            DeviceBuffer::Make(max_rows * weights_.n *
                                               ElementBytes(context.x_dtype)));
    W4a8Args args{.w = weights_,
                  .x = {.codes = x.data(),
                        .pitch = pitch,
                        .scales = scales.as<const float>(),
                        .sums = sums.data()},
                  .y = y.data(),
                  .ldy = weights_.n,
                  .y_dtype = context.x_dtype};
    return [args, &context](int64_t rows, const LaunchSpec& spec) mutable {
      args.m = rows;
      LaunchW4a8(args, spec, context.device, context.stream->get());
    };
  };
  return MakeLayerPlan(problem, context);
}

void W4a8Linear::Run(const LinearCall& call, const float* bias,
                     const CudaLinearContext& context) const {
  const int64_t rows = call.y.rows, pitch = W8Pitch(weights_.k);
  const Scratch at(rows, weights_.k,
                   W4a8SumsPitch(weights_.format, weights_.k));
  std::byte* const scratch = context.scratch->data();
  const EncodedRows x =
      EncodeRows(call, WidePacking::kInt8, weights_.k, scratch,
                 reinterpret_cast<float*>(scratch + at.scales), context);
  LaunchW4a8Prepare({.codes = x.codes,
                     .pitch = pitch,
                     .m = rows,
                     .k = weights_.k,
                     .to = scratch,
                     .sums = scratch + at.sums},
                    weights_.format, context.stream->get());
  W4a8Args args{.w = weights_,
                .x = {.codes = scratch,
                      .pitch = pitch,
                      .scales = x.scales,
                      .sums = scratch + at.sums},
                .m = rows,
                .y = call.y.data,
                .ldy = call.y.row_stride,
                .y_dtype = call.y.dtype,
                .bias = bias};
  if (call.epilogue == Epilogue::kAdd) {
    args.residual = call.y.data;
    args.ld_residual = call.y.row_stride;
  }
  LaunchW4a8(args, plan_.ForRows(rows), context.device, context.stream->get(),
             {.overlap = context.overlap});
}

}  // namespace nibble::kernels::cuda
