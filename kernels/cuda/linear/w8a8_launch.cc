// The launcher of the W8A8 kernels.
#include <cuda_runtime_api.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/cuda/linear/inst/w8a8_kernels.h"
#include "kernels/cuda/linear/kernel_setup.h"
#include "kernels/cuda/linear/tensor_map.h"
#include "kernels/cuda/linear/w8a8_plan.h"
#include "kernels/cuda/runtime.h"

namespace nibble::kernels::cuda {
namespace {

constexpr int64_t kWideBytes = 16;  // of a store or a load of the kernel

bool IsAligned(const void* p, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(bytes) == 0;
}

void CheckCodes(const void* codes, int64_t k, int64_t pitch) {
  NIBBLE_CHECK(codes != nullptr && IsAligned(codes, kW8PitchBytes));
  NIBBLE_CHECK_GE(pitch, k);
  NIBBLE_CHECK_EQ(pitch % kW8PitchBytes, 0);
}

void CheckArgs(const W8Args& args) {
  NIBBLE_CHECK_GE(args.w.n, 1);
  NIBBLE_CHECK_GE(args.w.k, 1);
  CheckCodes(args.x.codes, args.w.k, args.x.pitch);
  CheckCodes(args.w.codes, args.w.k, args.w.pitch);
  NIBBLE_CHECK(args.x.scales != nullptr && args.w.scales != nullptr);
  const bool blocks = args.kind == W8Kind::kE4m3Block;
  NIBBLE_CHECK_EQ(args.x.scaling == W8Scaling::kBlock, blocks);
  NIBBLE_CHECK_EQ(args.w.scaling == W8Scaling::kBlock, blocks);
  const bool groups = args.kind == W8Kind::kInt8Group;
  NIBBLE_CHECK_EQ(args.w.scaling == W8Scaling::kGroup, groups);
  NIBBLE_CHECK(args.x.scaling != W8Scaling::kGroup);
  if (groups) {
    NIBBLE_CHECK(IsAligned(args.w.scales, kWideBytes));
    NIBBLE_CHECK_GE(args.w.scales_pitch, args.w.n);
    NIBBLE_CHECK_EQ(args.w.scales_pitch % 4, 0);
  }
  if (blocks) {
    NIBBLE_CHECK(IsAligned(args.x.scales, kWideBytes));
    NIBBLE_CHECK_GE(args.x.scales_pitch, args.m);
    NIBBLE_CHECK_EQ(args.x.scales_pitch % 4, 0);
  }
  if (args.x.zeros != nullptr) {
    if (groups) {
      NIBBLE_CHECK(args.w.scaled_sums != nullptr);
    } else {
      NIBBLE_CHECK(args.kind == W8Kind::kInt8 && args.w.sums != nullptr);
      NIBBLE_CHECK_LE(args.w.k, kW8MaxZerosK);
    }
  }
  NIBBLE_CHECK(args.y != nullptr);
  NIBBLE_CHECK_GE(args.ldy, args.w.n);
  NIBBLE_CHECK(args.y_dtype == DType::kBF16 || args.y_dtype == DType::kF16 ||
               args.y_dtype == DType::kF32);
  if (args.residual != nullptr) NIBBLE_CHECK_GE(args.ld_residual, args.w.n);
}

// A spec that W8Feasible would have refused.
[[noreturn]] void RefuseSpec(const W8Problem& problem, const LaunchSpec& spec,
                             const DeviceInfo& device) {
  ::nibble::internal::CheckFailed(
      __FILE__, __LINE__,
      absl::StrCat(spec.ToString(), " cannot run ", problem.ToString(), " on ",
                   device.ToString()));
}

// Bytes [rows, columns], rows `pitch` apart, as tensor copies see them.
TensorMatrix MatrixOf(const void* bytes, int64_t rows, int64_t columns,
                      int64_t pitch) {
  return {
      .data = bytes, .rows = rows, .columns = columns, .pitch_bytes = pitch};
}

// Whether eights of y, or of the residual, begin at multiples of 16 bytes.
bool IsWide(const void* rows, int64_t pitch, DType dtype) {
  return IsAligned(rows, kWideBytes) &&
         pitch * ElementBytes(dtype) % kWideBytes == 0;
}

// Fills what PlanW8 leaves open.
void PointAt(const W8Args& args, W8Params& params) {
  params.x_scales = args.x.scales;
  params.w_scales = args.w.scales;
  params.x_scale_step = args.x.scaling == W8Scaling::kTensor ? 0 : 1;
  params.w_scale_step = args.w.scaling == W8Scaling::kTensor ? 0 : 1;
  params.x_scales_pitch = args.x.scales_pitch;
  params.w_scales_pitch = args.w.scales_pitch;
  params.x_zeros = args.x.zeros;
  params.w_sums = args.w.sums;
  if (args.kind == W8Kind::kInt8Group) params.w_sums = args.w.scaled_sums;
  params.bias = args.bias;
  params.residual = args.residual;
  params.y = args.y;
  params.ldy = args.ldy;
  params.ld_residual = args.ld_residual;
  params.y_dtype = args.y_dtype;
  params.wide = IsWide(args.y, args.ldy, args.y_dtype) &&
                (args.residual == nullptr ||
                 IsWide(args.residual, args.ld_residual, args.y_dtype));
  params.plain =
      params.wide && args.residual == nullptr && args.y_dtype == DType::kBF16;
}

}  // namespace

bool W8IsCompiled() { return true; }

void LaunchW8(const W8Args& args, const LaunchSpec& spec,
              const DeviceInfo& device, CUstream_st* stream,
              const W8LaunchOptions& options) {
  NIBBLE_CHECK_GE(args.m, 0);
  if (args.m == 0) return;
  CheckArgs(args);
  const W8Problem problem{args.kind, args.m, args.w.n, args.w.k};
  auto config = ParseW8Spec(args.kind, spec);
  if (!config.has_value()) RefuseSpec(problem, spec, device);
  const void* kernel = W8KernelOf(args.kind, config->tile);
  PrepareKernel(kernel, device.index);
  int clusters = device.multiprocessors;
  if (config->cluster > 1) {
    clusters = MostClusters(kernel, device.index, config->cluster);
    // A part of a GPU may have no place for one: single CTAs do the same.
    if (clusters == 0) {
      config->cluster = 1;
      clusters = device.multiprocessors;
    }
  }
  const auto plan = PlanW8(problem, *config, device, clusters);
  if (!plan.has_value()) RefuseSpec(problem, spec, device);
  W8Params params = plan->params;
  PointAt(args, params);
  const CUtensorMap x_map = MakeTensorMap(
      MatrixOf(args.x.codes, args.m, args.w.k, args.x.pitch), params.x_box);
  const CUtensorMap w_map = MakeTensorMap(
      MatrixOf(args.w.codes, W8PackedRows(args.w.n), args.w.k, args.w.pitch),
      params.w_box);

  std::array<cudaLaunchAttribute, 2> attributes{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(config->cluster), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(plan->ctas));
  launch.blockDim = dim3(static_cast<unsigned>(plan->threads));
  launch.dynamicSmemBytes = static_cast<size_t>(plan->shared_bytes);
  launch.stream = stream;
  launch.attrs = attributes.data();
  launch.numAttrs = options.overlap ? 2 : 1;
  void* kernel_args[] = {const_cast<CUtensorMap*>(&x_map),
                         const_cast<CUtensorMap*>(&w_map), &params};
  NIBBLE_CUDA_CHECK(cudaLaunchKernelExC(&launch, kernel, kernel_args));
}

}  // namespace nibble::kernels::cuda
