// The launcher of the W8A8 kernels, and that of the kernel for every device.
#include "kernels/cuda/linear/w8a8_launch.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/cuda/linear/inst/w8a8_mma_kernels.h"
#include "kernels/cuda/linear/kernel_setup.h"
#include "kernels/cuda/linear/w8a8_layout.h"
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

void CheckSiluMul(const W8Args& args) {
  const W8SiluMul& silu_mul = args.silu_mul;
  NIBBLE_CHECK_EQ(args.w.n, W8GateUpRows(silu_mul.f));
  NIBBLE_CHECK_GE(args.ldy, silu_mul.f);
  NIBBLE_CHECK(args.residual == nullptr);
  if (silu_mul.result == W8Result::kNumbers) return;
  NIBBLE_CHECK(IsAligned(args.y, kW8PitchBytes));
  NIBBLE_CHECK_EQ(args.ldy % kW8PitchBytes, 0);
  NIBBLE_CHECK(silu_mul.scales != nullptr);
  if (silu_mul.result == W8Result::kE4m3Block) {
    NIBBLE_CHECK_GE(silu_mul.scales_pitch, args.m);
    NIBBLE_CHECK_EQ(silu_mul.scales_pitch % 4, 0);
  }
  NIBBLE_CHECK(silu_mul.result != W8Result::kInt8Tensor ||
               silu_mul.greatest != nullptr);
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
  if (args.silu_mul.f > 0) {
    CheckSiluMul(args);
  } else {
    NIBBLE_CHECK_GE(args.ldy, args.w.n);
  }
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
  params.silu_mul = args.silu_mul;
  params.y_dtype = args.y_dtype;
  params.wide = IsWide(args.y, args.ldy, args.y_dtype) &&
                (args.residual == nullptr ||
                 IsWide(args.residual, args.ld_residual, args.y_dtype));
  params.plain =
      params.wide && args.residual == nullptr && args.y_dtype == DType::kBF16;
}

void LaunchMma(const W8Args& args, const W8Config& config,
               const DeviceInfo& device, CUstream_st* stream,
               const W8LaunchOptions& options) {
  const void* kernel = W8MmaKernelOf(args.kind, config.tile);
  const KernelTraits traits = PrepareKernel(kernel, device.index);
  W8Launch plan = PlanW8Launch(args, config, device, device.multiprocessors);
  W8Codes codes{.x = static_cast<const char*>(args.x.codes),
                .w = static_cast<const char*>(args.w.codes),
                .x_pitch = args.x.pitch,
                .w_pitch = args.w.pitch,
                .w_rows = static_cast<int>(W8PackedRows(args.w.n)),
                .k = static_cast<int>(args.w.k)};

  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(plan.ctas));
  launch.blockDim = dim3(static_cast<unsigned>(plan.threads));
  launch.dynamicSmemBytes = static_cast<size_t>(plan.shared_bytes);
  launch.stream = stream;
  launch.attrs = &attribute;
  launch.numAttrs = options.overlap && traits.may_overlap ? 1 : 0;
  void* kernel_args[] = {&plan.params, &codes};
  NIBBLE_CUDA_CHECK(cudaLaunchKernelExC(&launch, kernel, kernel_args));
}

}  // namespace

bool W8MmaIsCompiled() { return true; }

W8Launch PlanW8Launch(const W8Args& args, const W8Config& config,
                      const DeviceInfo& device, int clusters) {
  const W8Problem problem{args.kind, args.m, args.w.n, args.w.k};
  auto plan = PlanW8(problem, config, device, clusters);
  if (!plan.has_value()) {
    RefuseSpec(problem, W8Spec(args.kind, config), device);
  }
  PointAt(args, plan->params);
  return *plan;
}

void LaunchW8(const W8Args& args, const LaunchSpec& spec,
              const DeviceInfo& device, CUstream_st* stream,
              const W8LaunchOptions& options) {
  NIBBLE_CHECK_GE(args.m, 0);
  if (args.m == 0) return;
  CheckArgs(args);
  const auto config = args.silu_mul.f > 0 ? ParseW8SiluMulSpec(args.kind, spec)
                                          : ParseW8Spec(args.kind, spec);
  if (!config.has_value()) {
    RefuseSpec({args.kind, args.m, args.w.n, args.w.k}, spec, device);
  }
  if (config->tile.schedule == W8Schedule::kMma) {
    LaunchMma(args, *config, device, stream, options);
  } else {
    LaunchW8Wgmma(args, *config, device, stream, options);
  }
}

}  // namespace nibble::kernels::cuda
