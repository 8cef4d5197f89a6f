// The launcher of the W4A8 kernels.
#include <cuda_runtime_api.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/cuda/linear/inst/w4a8_kernels.h"
#include "kernels/cuda/linear/kernel_setup.h"
#include "kernels/cuda/linear/tensor_map.h"
#include "kernels/cuda/linear/w4a8_plan.h"
#include "kernels/cuda/runtime.h"

namespace nibble::kernels::cuda {
namespace {

constexpr int64_t kCopyBytes =
    16;  // what bulk and tensor copies are aligned to
constexpr int64_t kStoreBytes = 8;

bool IsAligned(const void* p, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(bytes) == 0;
}

void CheckArgs(const W4a8Args& args) {
  NIBBLE_CHECK(args.w.blocks != nullptr &&
               IsAligned(args.w.blocks, kCopyBytes));
  NIBBLE_CHECK(args.x.codes != nullptr && IsAligned(args.x.codes, kCopyBytes));
  NIBBLE_CHECK_GE(args.x.pitch, args.w.k);
  NIBBLE_CHECK_EQ(args.x.pitch % kCopyBytes, 0);
  NIBBLE_CHECK(args.x.scales != nullptr);
  NIBBLE_CHECK_EQ(args.w.row_scales != nullptr,
                  args.w.format.kind == W4a8Kind::kRerounded);
  NIBBLE_CHECK_EQ(args.w.row_offsets != nullptr, args.w.format.HasOffsets());
  if (args.w.format.HasMinimums()) {
    NIBBLE_CHECK(args.x.sums != nullptr && IsAligned(args.x.sums, kCopyBytes));
  }
  NIBBLE_CHECK(args.y != nullptr);
  NIBBLE_CHECK_GE(args.ldy, args.w.n);
  NIBBLE_CHECK(args.residual == nullptr || args.ld_residual >= args.w.n);
  NIBBLE_CHECK(args.y_dtype == DType::kBF16 || args.y_dtype == DType::kF16 ||
               args.y_dtype == DType::kF32);
}

// Bytes [rows, columns], rows `pitch` apart, as tensor copies see them.
TensorMatrix MatrixOf(const void* bytes, int64_t rows, int64_t columns,
                      int64_t pitch) {
  return {
      .data = bytes, .rows = rows, .columns = columns, .pitch_bytes = pitch};
}

// Fills what PlanW4a8 leaves open.
void PointAt(const W4a8Args& args, W4a8Params& params) {
  params.w = args.w.blocks;
  params.row_scales = args.w.row_scales;
  params.row_offsets = args.w.row_offsets;
  params.x_scales = args.x.scales;
  params.bias = args.bias;
  params.residual = args.residual;
  params.ld_residual = args.ld_residual;
  params.y = args.y;
  params.ldy = args.ldy;
  params.y_dtype = args.y_dtype;
  const auto aligned = [&](const void* matrix, int64_t ld) {
    return IsAligned(matrix, kStoreBytes) &&
           ld * ElementBytes(args.y_dtype) % kStoreBytes == 0;
  };
  params.wide =
      args.y_dtype != DType::kF32 && aligned(args.y, args.ldy) &&
      (args.residual == nullptr || aligned(args.residual, args.ld_residual));
}

}  // namespace

bool W4a8IsCompiled() { return true; }

void LaunchW4a8(const W4a8Args& args, const LaunchSpec& spec,
                const DeviceInfo& device, CUstream_st* stream,
                const W4a8LaunchOptions& options) {
  NIBBLE_CHECK_GE(args.m, 0);
  if (args.m == 0) return;
  CheckArgs(args);
  const W4a8Problem problem{args.w.format, args.m, args.w.n, args.w.k};
  const auto columns = ParseW4a8Spec(args.w.format, spec);
  const auto plan =
      columns.has_value() ? PlanW4a8(problem, *columns, device) : std::nullopt;
  if (!plan.has_value()) {
    ::nibble::internal::CheckFailed(
        __FILE__, __LINE__,
        absl::StrCat(spec.ToString(), " cannot run ", problem.ToString(),
                     " on ", device.ToString()));
  }
  const void* kernel = W4a8KernelOf(args.w.format, *columns);
  PrepareKernel(kernel, device.index);
  W4a8Params params = plan->params;
  PointAt(args, params);
  const CUtensorMap x_map = MakeTensorMap(
      MatrixOf(args.x.codes, args.m, args.w.k, args.x.pitch), params.x_box);
  CUtensorMap sums_map = x_map;  // not read where there are no minimums
  if (args.w.format.HasMinimums()) {
    const int64_t pitch = W4a8SumsPitch(args.w.format, args.w.k);
    sums_map = MakeTensorMap(MatrixOf(args.x.sums, args.m, pitch, pitch),
                             params.x_box);
  }

  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(plan->ctas));
  launch.blockDim = dim3(128 * (kW4a8Warpgroups + 1));
  launch.dynamicSmemBytes = static_cast<size_t>(plan->shared_bytes);
  launch.stream = stream;
  launch.attrs = &attribute;
  launch.numAttrs = options.overlap ? 1 : 0;
  void* kernel_args[] = {const_cast<CUtensorMap*>(&x_map), &sums_map, &params};
  NIBBLE_CUDA_CHECK(cudaLaunchKernelExC(&launch, kernel, kernel_args));
}

}  // namespace nibble::kernels::cuda
