// The launcher of the W4A16 kernel for many rows.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/linear/inst/mid_kernels.h"
#include "kernels/cuda/linear/kernel_setup.h"
#include "kernels/cuda/linear/tensor_map.h"
#include "kernels/cuda/linear/w4a16_mid.h"
#include "kernels/cuda/linear/w4a16_prepare.h"
#include "kernels/cuda/runtime.h"

namespace nibble::kernels::cuda {
namespace {

// x [rows, k] as tensor copies see it: 16-bit elements, rows `pitch` of them
// apart.
TensorMatrix MatrixOfX(const void* x, int64_t rows, int64_t k, int64_t pitch,
                       DType dtype) {
  return {.data = x,
          .type = dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                        : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
          .element_bytes = 2,
          .rows = rows,
          .columns = k,
          .pitch_bytes = pitch * 2};
}

cudaLaunchAttribute Overlapping() {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

// Enqueues the kernel that prepares x; where x and its sums are then.
TensorMatrix Prepare(const W4Args& args, const void* kernel, int columns,
                     uint32_t* arrived, int counters, CUstream_st* stream,
                     bool overlap) {
  const MidScratch at = LayOutMidScratch(args.m, args.w.k);
  auto* scratch = static_cast<char*>(args.scratch);
  const bool scales = args.x_dtype == DType::kBF16;
  PrepareParams params{.x = static_cast<const char*>(args.x),
                       .ldx_bytes = args.ldx * 2,
                       .arrived = arrived,
                       .counters = counters,
                       .m = static_cast<int>(args.m),
                       .k = static_cast<int>(args.w.k),
                       .blocks_k = static_cast<int>(BlocksPerTile(args.w.k)),
                       .waits = overlap,
                       .scaled = scratch,
                       .scaled_pitch_bytes = at.x_pitch * 2,
                       .sums = reinterpret_cast<float*>(scratch + at.sums_at),
                       .columns = columns};
  cudaLaunchAttribute attribute = Overlapping();
  cudaLaunchConfig_t launch{};
  launch.gridDim =
      dim3(static_cast<unsigned>(CeilDiv(args.m, kPrepareRows)),
           static_cast<unsigned>(CeilDiv(2 * params.blocks_k, kPrepareWarps)));
  launch.blockDim = dim3(32 * kPrepareWarps);
  launch.stream = stream;
  launch.attrs = &attribute;
  launch.numAttrs = overlap ? 1 : 0;
  void* kernel_args[] = {&params};
  NIBBLE_CUDA_CHECK(cudaLaunchKernelExC(&launch, kernel, kernel_args));
  return MatrixOfX(scales ? scratch : args.x, args.m, args.w.k,
                   scales ? at.x_pitch : args.ldx, args.x_dtype);
}

}  // namespace

bool MidIsCompiled() { return true; }

void LaunchMid(const W4Args& args, const MidConfig& config,
               const DeviceInfo& device, CUstream_st* stream,
               const W4LaunchOptions& options) {
  const W4Weights& w = args.w;
  const MidVariant& variant = config.variant;
  const void* kernel = MidKernel(w.layout, args.x_dtype, variant);
  NIBBLE_CHECK(kernel != nullptr);
  const auto plan = PlanMid(w, args.m, args.epilogue, config, device);
  NIBBLE_CHECK(plan.has_value());
  PrepareKernel(kernel, device.index);

  const MidScratch at = LayOutMidScratch(args.m, w.k);
  auto* scratch = static_cast<char*>(args.scratch);
  NIBBLE_CHECK(scratch != nullptr);
  MidParams params = plan->params;
  params.blocks = static_cast<const char*>(w.blocks);
  params.sums = reinterpret_cast<const float*>(scratch + at.sums_at);
  params.partials = reinterpret_cast<float*>(scratch + at.partials_at);
  params.arrived = reinterpret_cast<uint32_t*>(scratch + at.arrived_at);
  params.out = OutputOf(args);
  params.tensor_scale = w.tensor_scale;

  bool overlap = options.overlap;
  TensorMatrix x = MatrixOfX(args.x, args.m, w.k, args.ldx, args.x_dtype);
  const int counters =
      config.parts == 1 ? 0
                        : (params.work >> params.parts_log2) * kMidWarpgroups;
  const void* prepare = PrepareKernelOf(w.layout, args.x_dtype);
  if (prepare != nullptr) {
    x = Prepare(args, prepare, variant.columns, params.arrived, counters,
                stream, overlap);
    overlap = true;
  } else if (counters > 0) {
    NIBBLE_CUDA_CHECK(cudaMemsetAsync(params.arrived, 0,
                                      counters * sizeof(uint32_t), stream));
    overlap = false;
  }
  const CUtensorMap map = MakeTensorMap(x, variant.columns);

  cudaLaunchAttribute attribute = Overlapping();
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(plan->ctas));
  launch.blockDim = dim3(static_cast<unsigned>(plan->threads));
  launch.dynamicSmemBytes = static_cast<size_t>(plan->shared_bytes);
  launch.stream = stream;
  launch.attrs = &attribute;
  launch.numAttrs = overlap ? 1 : 0;
  void* kernel_args[] = {const_cast<CUtensorMap*>(&map), &params};
  NIBBLE_CUDA_CHECK(cudaLaunchKernelExC(&launch, kernel, kernel_args));
}

}  // namespace nibble::kernels::cuda
