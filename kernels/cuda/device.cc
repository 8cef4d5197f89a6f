// ListDevices over the CUDA runtime, which is linked statically and opens the
// driver's library on the first call.
#include "kernels/cuda/device.h"

#include <cuda_runtime_api.h>

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace nibble::kernels::cuda {
namespace {

absl::Status ToStatus(const char* call, cudaError_t error) {
  return absl::InternalError(absl::StrCat(call, ": ", cudaGetErrorName(error),
                                          ": ", cudaGetErrorString(error)));
}

// Nothing wrong where there is no driver; an error where there is an old one:
// the runtime gives both the same code.
absl::Status CheckDriverVersion() {
  int driver = 0;  // stays 0 without a driver; 1000 * major + 10 * minor
  int runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0) return absl::OkStatus();
  const auto version = [](int number) {
    return absl::StrCat(number / 1000, ".", number % 1000 / 10);
  };
  return absl::FailedPreconditionError(
      absl::StrCat("the NVIDIA driver is for CUDA up to ", version(driver),
                   ", this program needs ", version(runtime)));
}

}  // namespace

absl::StatusOr<std::vector<DeviceInfo>> ListDevices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver) {
    cudaGetLastError();  // or the next call's check would see it
    if (error == cudaErrorInsufficientDriver) {
      NIBBLE_RETURN_IF_ERROR(CheckDriverVersion());
    }
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
         .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
         .shared_memory_bytes =
             static_cast<int64_t>(properties.sharedMemPerBlockOptin)});
  }
  return devices;
}

}  // namespace nibble::kernels::cuda
