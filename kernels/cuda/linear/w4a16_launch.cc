// The launchers of the W4A16 kernels.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/cuda/linear/inst/small_kernels.h"
#include "kernels/cuda/linear/kernel_setup.h"
#include "kernels/cuda/linear/w4a16.h"
#include "kernels/cuda/linear/w4a16_mid.h"
#include "kernels/cuda/linear/w4a16_small.h"
#include "kernels/cuda/runtime.h"

namespace nibble::kernels::cuda {
namespace {

// cudaLaunchConfig_t::gridDim.y
constexpr int64_t kMaxGridY = 65'535;

bool IsAligned(const void* p, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

void CheckArgs(const W4Args& args) {
  const W4Weights& w = args.w;
  NIBBLE_CHECK_GE(w.n, 1);
  NIBBLE_CHECK_GE(w.k, 1);
  NIBBLE_CHECK(w.blocks != nullptr && IsAligned(w.blocks, 16));
  NIBBLE_CHECK(args.x != nullptr && IsAligned(args.x, 16));
  NIBBLE_CHECK(args.y != nullptr);
  NIBBLE_CHECK_GE(args.ldx, w.k);
  NIBBLE_CHECK_EQ(args.ldx % 8, 0);
  NIBBLE_CHECK_GE(args.ldy, args.n_out);
  NIBBLE_CHECK(args.x_dtype == DType::kBF16 || args.x_dtype == DType::kF16);
  NIBBLE_CHECK(args.y_dtype == DType::kBF16 || args.y_dtype == DType::kF16 ||
               args.y_dtype == DType::kF32);
  if (args.epilogue == W4Epilogue::kSiluMul) {
    NIBBLE_CHECK_EQ(w.n, 2 * Tiles(args.n_out) * kTileRows);
    NIBBLE_CHECK(args.bias == nullptr);
  } else {
    NIBBLE_CHECK_EQ(args.n_out, w.n);
  }
}

// A spec that W4Feasible would have refused.
[[noreturn]] void RefuseSpec(const W4Args& args, const LaunchSpec& spec,
                             const DeviceInfo& device) {
  ::nibble::internal::CheckFailed(
      __FILE__, __LINE__,
      absl::StrCat(spec.ToString(), " cannot run m = ", args.m,
                   ", n = ", args.w.n, ", k = ", args.w.k, ", epilogue ",
                   static_cast<int>(args.epilogue), " on ", device.ToString()));
}

}  // namespace

void LaunchSmall(const W4Args& args, const SmallConfig& config,
                 const DeviceInfo& device, CUstream_st* stream,
                 const W4LaunchOptions& options) {
  const W4Weights& w = args.w;
  const void* kernel = SmallKernel(w.layout, args.x_dtype, config.variant);
  NIBBLE_CHECK(kernel != nullptr);
  const KernelTraits traits = PrepareKernel(kernel, device.index);
  const bool in_cluster = config.cluster > 1;
  int teams = std::numeric_limits<int>::max();
  if (in_cluster) {
    teams = MostClusters(kernel, device.index, config.cluster);
    // A part of a GPU may have no place for one: single CTAs do the same.
    if (teams == 0) {
      const auto singles =
          SmallConfigs(w, args.m, args.epilogue, device, /*clusters=*/false);
      NIBBLE_CHECK(!singles.empty());
      return LaunchSmall(args, singles.front(), device, stream, options);
    }
  }
  const auto plan = PlanSmall(w, args.m, args.epilogue, config, device, teams);
  if (!plan.has_value()) RefuseSpec(args, SmallSpec(config), device);
  const bool overlap = options.overlap && traits.may_overlap;

  std::array<cudaLaunchAttribute, 2> attributes{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(config.cluster), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  const int first = in_cluster ? 0 : 1;
  cudaLaunchConfig_t launch{};
  launch.blockDim = dim3(32 * plan->slices, plan->lanes);
  launch.dynamicSmemBytes = static_cast<size_t>(plan->shared_bytes);
  launch.stream = stream;
  launch.attrs = attributes.data() + first;
  launch.numAttrs = (overlap ? 2 : 1) - first;

  SmallParams params = plan->params;
  params.blocks = static_cast<const char*>(w.blocks);
  params.ldx_bytes = args.ldx * 2;
  const int64_t row_step = params.ldx_bytes * plan->lanes;
  constexpr int64_t kBlockStep = kBlockK * 2;
  params.x_inner_step = params.x_along_k ? kBlockStep : row_step;
  params.x_outer_step = params.x_along_k ? row_step : kBlockStep;
  params.tensor_scale = w.tensor_scale;
  params.dependency = !overlap ? Dependency::kNone
                      : AsksEarly(*plan, w.layout, config)
                          ? Dependency::kWeightsFirst
                          : Dependency::kWait;
  const int64_t pass_rows = config.variant.nt * 8;
  // One launch but for millions of rows.
  for (int64_t row = 0; row < args.m; row += pass_rows * kMaxGridY) {
    const int64_t rows = std::min(args.m - row, pass_rows * kMaxGridY);
    params.x = static_cast<const char*>(args.x) + row * params.ldx_bytes;
    params.out = OutputOf(args);
    params.out.y = static_cast<char*>(args.y) +
                   row * args.ldy * ElementBytes(args.y_dtype);
    params.m = static_cast<int>(rows);
    params.last_row = params.m - params.rows;
    launch.gridDim = dim3(static_cast<unsigned>(plan->ctas),
                          static_cast<unsigned>(CeilDiv(rows, pass_rows)));
    void* kernel_args[] = {&params};
    NIBBLE_CUDA_CHECK(cudaLaunchKernelExC(&launch, kernel, kernel_args));
  }
}

void LaunchW4(const W4Args& args, const LaunchSpec& spec,
              const DeviceInfo& device, CUstream_st* stream,
              const W4LaunchOptions& options) {
  NIBBLE_CHECK_GE(args.m, 0);
  if (args.m == 0) return;
  CheckArgs(args);
  if (const auto config = ParseSmallSpec(spec)) {
    return LaunchSmall(args, *config, device, stream, options);
  }
  if (const auto config = ParseMidSpec(spec)) {
    return LaunchMid(args, *config, device, stream, options);
  }
  RefuseSpec(args, spec, device);
}

}  // namespace nibble::kernels::cuda
