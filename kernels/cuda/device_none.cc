// ListDevices of a build without CUDA.
#include <vector>

#include "kernels/cuda/device.h"

namespace nibble::kernels::cuda {

absl::StatusOr<std::vector<DeviceInfo>> ListDevices() {
  return std::vector<DeviceInfo>();
}

}  // namespace nibble::kernels::cuda
