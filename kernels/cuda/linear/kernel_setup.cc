#include "kernels/cuda/linear/kernel_setup.h"

#include <map>
#include <mutex>
#include <utility>

#include "kernels/cuda/runtime.h"

namespace nibble::kernels::cuda {
namespace {

// The compute capability (times ten) from which on code waits by
// griddepcontrol: that of the PTX it was made from, not that of the device.
constexpr int kOverlapPtxVersion = 90;

KernelTraits Prepare(const void* function, int device) {
  cudaFuncAttributes attributes;
  NIBBLE_CUDA_CHECK(cudaFuncGetAttributes(&attributes, function));
  int shared_bytes = 0;
  NIBBLE_CUDA_CHECK(cudaDeviceGetAttribute(
      &shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  NIBBLE_CUDA_CHECK(cudaFuncSetAttribute(
      function, cudaFuncAttributeMaxDynamicSharedMemorySize,
      shared_bytes - static_cast<int>(attributes.sharedSizeBytes)));
  return {.may_overlap = attributes.ptxVersion >= kOverlapPtxVersion};
}

int AskClusters(const void* function, int ctas) {
  cudaFuncAttributes attributes;
  NIBBLE_CUDA_CHECK(cudaFuncGetAttributes(&attributes, function));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(ctas), 1, 1};
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(ctas));
  launch.blockDim = dim3(32);
  launch.dynamicSmemBytes =
      static_cast<size_t>(attributes.maxDynamicSharedSizeBytes);
  launch.attrs = &cluster;
  launch.numAttrs = 1;
  int clusters = 0;
  NIBBLE_CUDA_CHECK(
      cudaOccupancyMaxActiveClusters(&clusters, function, &launch));
  return clusters;
}

}  // namespace

int MostClusters(const void* function, int device, int ctas) {
  using Key = std::pair<int, int>;  // device, CTAs
  static std::mutex mutex;
  static auto* const asked = new std::map<Key, int>();
  const Key key{device, ctas};
  const std::lock_guard lock(mutex);
  const auto found = asked->find(key);
  if (found != asked->end()) return found->second;
  return asked->emplace(key, AskClusters(function, ctas)).first->second;
}

KernelTraits PrepareKernel(const void* function, int device) {
  using Key = std::pair<const void*, int>;  // kernel, device
  static std::mutex mutex;
  static auto* const prepared = new std::map<Key, KernelTraits>();
  const Key key{function, device};
  const std::lock_guard lock(mutex);
  const auto found = prepared->find(key);
  if (found != prepared->end()) return found->second;
  return prepared->emplace(key, Prepare(function, device)).first->second;
}

}  // namespace nibble::kernels::cuda
