// The CUDA devices of this machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble::kernels::cuda {

// What is known of one device. By value.
struct DeviceInfo {
  int index = 0;     // as cudaSetDevice takes it
  std::string name;  // e.g. "NVIDIA H200"
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  // Shared memory that one CTA can have when its kernel asks for it.
  int64_t shared_memory_bytes = 0;

  // One line: "cuda:0 NVIDIA H200, compute 9.0, 132 SMs, 139.8 GiB".
  std::string ToString() const;
};

// The devices that the process may use, by index: none in a build without
// CUDA, on a machine without a driver, or without a GPU. FAILED_PRECONDITION
// when the driver is too old, INTERNAL when it does not answer as it should.
// Creates no context.
absl::StatusOr<std::vector<DeviceInfo>> ListDevices();

}  // namespace nibble::kernels::cuda
