#include "kernels/cuda/linear/cuda_linear.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checked_math.h"
#include "base/status.h"
#include "kernels/cuda/linear/cuda_activations.h"
#include "kernels/cuda/linear/gather_rows.h"
#include "kernels/cuda/linear/pack.h"
#include "kernels/cuda/linear/permute.h"

namespace nibble::kernels::cuda {
namespace {

constexpr int64_t kScratchAlignment = 256;

// Whether two tensors can be rows of one packed matrix.
bool SharesLaunch(const WeightView& a, const WeightView& b) {
  const auto a_layout = W4LayoutOf(a);
  const auto b_layout = W4LayoutOf(b);
  if (!a_layout.ok() || !b_layout.ok() || *a_layout != *b_layout) return false;
  if (a.k != b.k || a.tensor_scale != b.tensor_scale) return false;
  if (a.g_idx == nullptr || b.g_idx == nullptr) return a.g_idx == b.g_idx;
  return std::memcmp(a.g_idx, b.g_idx,
                     static_cast<size_t>(a.k) * sizeof(int32_t)) == 0;
}

absl::Status CheckParts(std::span<const WeightView> parts,
                        const LinearOptions& options) {
  const auto refuse = [&options](const auto&... why) {
    return absl::InvalidArgumentError(
        absl::StrCat("linear layer '", options.name, "': ", why...));
  };
  if (parts.empty()) return refuse("it has no matrix");
  for (const WeightView& part : parts) {
    NIBBLE_RETURN_IF_ERROR(W4LayoutOf(part).status());
    if (part.k != parts[0].k) {
      return refuse("k = ", part.k, " of tensor '", std::string(part.name),
                    "' is not the ", parts[0].k, " of tensor '",
                    std::string(parts[0].name), "' it is stacked with");
    }
  }
  if (options.max_rows < 1) {
    return refuse("max_rows = ", options.max_rows, " is below 1");
  }
  if (!options.silu_mul) return absl::OkStatus();
  if (parts.size() != 2) {
    return refuse("silu_mul needs two matrices, gate and up, not ",
                  parts.size());
  }
  if (options.bias != nullptr) return refuse("silu_mul takes no bias");
  if (options.gather) return refuse("silu_mul has no rows to gather");
  if (options.wide != WidePacking::kNone) {
    return absl::UnimplementedError(
        absl::StrCat("linear layer '", options.name,
                     "': silu_mul has no 8-bit packing for the wide path"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaLinear>> CudaLinear::Create(
    std::span<const WeightView> parts, const LinearOptions& options,
    const CudaLinearContext& context) {
  NIBBLE_CHECK(context.stream != nullptr && context.scratch != nullptr &&
               context.plans != nullptr);
  NIBBLE_CHECK(context.x_dtype == DType::kBF16 ||
               context.x_dtype == DType::kF16);
  NIBBLE_RETURN_IF_ERROR(CheckParts(parts, options));
  std::unique_ptr<CudaLinear> op(new CudaLinear(context));
  op->k_ = parts[0].k;
  op->max_rows_ = options.max_rows;
  if (options.silu_mul) op->epilogue_ = W4Epilogue::kSiluMul;
  for (size_t begin = 0; begin < parts.size();) {
    size_t end = begin + 1;
    // Gate and up are one launch or refused.
    while (end < parts.size() &&
           (options.silu_mul || SharesLaunch(parts[begin], parts[end]))) {
      ++end;
    }
    NIBBLE_RETURN_IF_ERROR(
        op->AddSegment(parts.subspan(begin, end - begin), options));
    begin = end;
  }
  if (options.multiply && (options.wide == WidePacking::kInt8 ||
                           options.wide == WidePacking::kE4m3)) {
    NIBBLE_ASSIGN_OR_RETURN(op->wide_,
                            WideLinear::Create(parts, options, context));
  }
  NIBBLE_RETURN_IF_ERROR(op->ReserveMemory(options));
  if (options.multiply) {
    for (Segment& segment : op->segments_) segment.plan = op->MakePlan(segment);
  }
  return op;
}

absl::Status CudaLinear::AddSegment(std::span<const WeightView> parts,
                                    const LinearOptions& options) {
  NIBBLE_ASSIGN_OR_RETURN(const PackedW4 packed,
                          PackW4(parts, {.interleave_gate_up = options.silu_mul,
                                         .threads = context_.pack_threads}));
  Segment segment;
  segment.first_column = n_;
  segment.columns = options.silu_mul ? parts[0].n : packed.n;
  NIBBLE_ASSIGN_OR_RETURN(
      segment.blocks, UploadForLayer(packed.blocks.data(),
                                     static_cast<int64_t>(packed.blocks.size()),
                                     *context_.stream, options, "weights"));
  segment.weights = {.blocks = segment.blocks.data(),
                     .n = packed.n,
                     .k = packed.k,
                     .layout = packed.layout,
                     .tensor_scale = packed.tensor_scale};
  NIBBLE_ASSIGN_OR_RETURN(
      segment.x_perm, UploadForLayer(packed.x_perm.data(),
                                     static_cast<int64_t>(packed.x_perm.size() *
                                                          sizeof(int32_t)),
                                     *context_.stream, options, "act-order"));
  if (options.wide == WidePacking::kInt4 && options.multiply) {
    NIBBLE_ASSIGN_OR_RETURN(segment.wide,
                            W4a8Linear::Create(packed, options, context_));
  }
  n_ += segment.columns;
  segments_.push_back(std::move(segment));
  return absl::OkStatus();
}

absl::Status CudaLinear::ReserveMemory(const LinearOptions& options) {
  const auto float_bytes = static_cast<int64_t>(sizeof(float));
  if (options.bias != nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(
        bias_, UploadForLayer(options.bias, n_ * float_bytes, *context_.stream,
                              options, "bias"));
  }
  if (options.gather) {
    auto ids =
        DeviceBuffer::Make(max_rows_ * static_cast<int64_t>(sizeof(int32_t)));
    if (!ids.ok()) return AnnotateLayer(ids.status(), options, "row ids");
    ids_ = *std::move(ids);
  }
  const bool reorders =
      std::any_of(segments_.begin(), segments_.end(),
                  [](const Segment& s) { return s.x_perm.bytes() > 0; });
  if (reorders) {
    kernel_scratch_offset_ = RoundUp(
        max_rows_ * ActivationPitch(k_) * ElementBytes(context_.x_dtype),
        kScratchAlignment);
  }
  const int64_t wide_bytes = wide_.has_value()
                                 ? WideLinear::ScratchBytes(max_rows_, k_)
                             : segments_.front().wide.has_value()
                                 ? W4a8Linear::ScratchBytes(max_rows_, k_)
                                 : 0;
  if (const absl::Status status = context_.scratch->Reserve(std::max(
          kernel_scratch_offset_ + W4ScratchBytes(max_rows_, k_), wide_bytes));
      !status.ok()) {
    return AnnotateLayer(status, options, "scratch");
  }
  return absl::OkStatus();
}

int64_t CudaLinear::packed_bytes() const {
  int64_t bytes = 0;
  for (const Segment& segment : segments_) {
    bytes += segment.blocks.bytes();
    if (segment.wide.has_value()) bytes += segment.wide->packed_bytes();
  }
  return bytes + (wide_.has_value() ? wide_->packed_bytes() : 0);
}

W4Args CudaLinear::ArgsFor(const Segment& segment,
                           const LinearCall& call) const {
  const auto& x = static_cast<const CudaActivations&>(*call.x);
  const TensorView y = call.y.Cols(segment.first_column, segment.columns);
  const float* bias = bias_.bytes() > 0
                          ? bias_.as<const float>() + segment.first_column
                          : nullptr;
  W4Epilogue epilogue = epilogue_;
  if (call.epilogue == Epilogue::kAdd) epilogue = W4Epilogue::kAdd;
  W4Args args{.w = segment.weights,
              .x = x.Row(call.row_begin),
              .ldx = x.pitch(),
              .x_dtype = x.dtype(),
              .y = y.data,
              .ldy = y.row_stride,
              .y_dtype = y.dtype,
              .m = y.rows,
              .n_out = segment.columns,
              .bias = bias,
              .epilogue = epilogue,
              .scratch = context_.scratch->data() + kernel_scratch_offset_};
  if (segment.x_perm.bytes() > 0) {
    GatherColumns({.x = args.x,
                   .ldx = args.ldx,
                   .columns = segment.x_perm.as<const int32_t>(),
                   .out = context_.scratch->data(),
                   .ldout = ActivationPitch(k_),
                   .m = args.m,
                   .k = k_},
                  *context_.stream);
    args.x = context_.scratch->data();
    args.ldx = ActivationPitch(k_);
  }
  return args;
}

void CudaLinear::RunWide(const Segment& segment, const LinearCall& call) const {
  LinearCall part = call;
  part.y = call.y.Cols(segment.first_column, segment.columns);
  segment.wide->Run(part,
                    bias_.bytes() > 0
                        ? bias_.as<const float>() + segment.first_column
                        : nullptr,
                    context_);
}

void CudaLinear::Run(const LinearCall& call) const {
  const int64_t rows = call.y.rows;
  if (rows == 0) return;
  NIBBLE_CHECK(call.x != nullptr);
  NIBBLE_CHECK_EQ(call.x->k(), k_);
  NIBBLE_CHECK_EQ(call.y.cols, n_);
  NIBBLE_CHECK_LE(rows, max_rows_);
  NIBBLE_CHECK_GE(call.row_begin, 0);
  NIBBLE_CHECK_LE(call.row_begin + rows, call.x->max_rows());
  const DType y_dtype = call.y.dtype;
  NIBBLE_CHECK(y_dtype == DType::kBF16 || y_dtype == DType::kF16 ||
               y_dtype == DType::kF32);
  NIBBLE_CHECK(static_cast<const CudaActivations*>(call.x)->dtype() ==
               context_.x_dtype);
  NIBBLE_CHECK(epilogue_ == W4Epilogue::kStore ||
               call.epilogue == Epilogue::kStore);
  if (call.path == LinearPath::kWide && wide_.has_value()) {
    wide_->Run(call, bias_.bytes() > 0 ? bias_.as<const float>() : nullptr,
               context_);
    return;
  }
  for (const Segment& segment : segments_) {
    if (call.path == LinearPath::kWide && segment.wide.has_value()) {
      RunWide(segment, call);
      continue;
    }
    LaunchW4(ArgsFor(segment, call), segment.plan.ForRows(rows),
             context_.device, context_.stream->get(),
             {.overlap = context_.overlap});
  }
}

void CudaLinear::GatherRows(std::span<const int32_t> ids, TensorView y) const {
  NIBBLE_CHECK(ids_.bytes() > 0);
  NIBBLE_CHECK_EQ(static_cast<int64_t>(ids.size()), y.rows);
  NIBBLE_CHECK_LE(y.rows, max_rows_);
  NIBBLE_CHECK_EQ(y.cols, k_);
  if (ids.empty()) return;
  for (const int32_t id : ids) NIBBLE_CHECK(id >= 0 && id < n_);
  // From pageable memory, so it has been read when the call returns.
  NIBBLE_CUDA_CHECK(cudaMemcpyAsync(ids_.data(), ids.data(), ids.size_bytes(),
                                    cudaMemcpyHostToDevice,
                                    context_.stream->get()));
  for (const Segment& segment : segments_) {
    LaunchGatherRows({.w = segment.weights,
                      .x_perm = segment.x_perm.as<const int32_t>(),
                      .ids = ids_.as<const int32_t>(),
                      .first_row = segment.first_column,
                      .y = y},
                     *context_.stream);
  }
}

absl::StatusOr<std::unique_ptr<LinearOp>> MakeCudaLinear(
    std::span<const WeightView> parts, const LinearOptions& options,
    const CudaLinearContext& context) {
  return CudaLinear::Create(parts, options, context);
}

}  // namespace nibble::kernels::cuda
