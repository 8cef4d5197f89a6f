// The launcher of the W8A8 kernel for Hopper.
#include <cuda_runtime_api.h>

#include <array>

#include "kernels/cuda/linear/inst/w8a8_kernels.h"
#include "kernels/cuda/linear/kernel_setup.h"
#include "kernels/cuda/linear/tensor_map.h"
#include "kernels/cuda/linear/w8a8_launch.h"
#include "kernels/cuda/runtime.h"

namespace nibble::kernels::cuda {
namespace {

// Bytes [rows, columns], rows `pitch` apart, as tensor copies see them.
TensorMatrix MatrixOf(const void* bytes, int64_t rows, int64_t columns,
                      int64_t pitch) {
  return {
      .data = bytes, .rows = rows, .columns = columns, .pitch_bytes = pitch};
}

}  // namespace

bool W8WgmmaIsCompiled() { return true; }

void LaunchW8Wgmma(const W8Args& args, W8Config config,
                   const DeviceInfo& device, CUstream_st* stream,
                   const W8LaunchOptions& options) {
  const void* kernel = args.silu_mul.f > 0
                           ? W8SiluMulKernelOf(args.kind, config.tile)
                           : W8KernelOf(args.kind, config.tile);
  PrepareKernel(kernel, device.index);
  int clusters = device.multiprocessors;
  if (config.cluster > 1) {
    clusters = MostClusters(kernel, device.index, config.cluster);
    // A part of a GPU may have no place for one: single CTAs do the same.
    if (clusters == 0) {
      config.cluster = 1;
      clusters = device.multiprocessors;
    }
  }
  W8Launch plan = PlanW8Launch(args, config, device, clusters);
  const W8Params& params = plan.params;
  const CUtensorMap x_map = MakeTensorMap(
      MatrixOf(args.x.codes, args.m, args.w.k, args.x.pitch), params.x_box);
  const CUtensorMap w_map = MakeTensorMap(
      MatrixOf(args.w.codes, W8PackedRows(args.w.n), args.w.k, args.w.pitch),
      params.w_box);

  std::array<cudaLaunchAttribute, 2> attributes{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(config.cluster), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(plan.ctas));
  launch.blockDim = dim3(static_cast<unsigned>(plan.threads));
  launch.dynamicSmemBytes = static_cast<size_t>(plan.shared_bytes);
  launch.stream = stream;
  launch.attrs = attributes.data();
  launch.numAttrs = options.overlap ? 2 : 1;
  void* kernel_args[] = {&plan.params, const_cast<CUtensorMap*>(&x_map),
                         const_cast<CUtensorMap*>(&w_map)};
  NIBBLE_CUDA_CHECK(cudaLaunchKernelExC(&launch, kernel, kernel_args));
}

}  // namespace nibble::kernels::cuda
