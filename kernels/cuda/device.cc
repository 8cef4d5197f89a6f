// ListDevices over the CUDA runtime, which is linked statically and opens the
// driver's library on the first call.
#include "kernels/cuda/device.h"

#include <cuda_runtime_api.h>

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace nibble::kernels::cuda {
namespace {

absl::Status ToStatus(const char* call, cudaError_t error) {
  return absl::InternalError(absl::StrCat(call, ": ", cudaGetErrorName(error),
                                          ": ", cudaGetErrorString(error)));
}

}  // namespace

absl::StatusOr<std::vector<DeviceInfo>> ListDevices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  // The runtime reports a driver that is absent as insufficient.
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver) {
    cudaGetLastError();  // or the next call's check would see it
    return std::vector<DeviceInfo>();
  }
  if (error != cudaSuccess) return ToStatus("cudaGetDeviceCount", error);
  std::vector<DeviceInfo> devices;
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties;
    if (const cudaError_t failed = cudaGetDeviceProperties(&properties, index);
        failed != cudaSuccess) {
      return ToStatus("cudaGetDeviceProperties", failed);
    }
    devices.push_back(
        {.index = index,
         .name = properties.name,
         .compute_major = properties.major,
         .compute_minor = properties.minor,
         .multiprocessors = properties.multiProcessorCount,
         .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem)});
  }
  return devices;
}

}  // namespace nibble::kernels::cuda
