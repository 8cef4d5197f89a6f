#include <string>

#include "absl/strings/str_format.h"
#include "kernels/cuda/device.h"

namespace nibble::kernels::cuda {

std::string DeviceInfo::ToString() const {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  return absl::StrFormat("cuda:%d %s, compute %d.%d, %d SMs, %.1f GiB", index,
                         name, compute_major, compute_minor, multiprocessors,
                         static_cast<double>(memory_bytes) / kGiB);
}

}  // namespace nibble::kernels::cuda
