// From the name of a device to its backend.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace nibble::kernels {

// kAuto takes the GPU where the build has its backend, else the CPU.
enum class Device : uint8_t { kAuto, kCpu, kReference, kCuda };

// "auto", "cpu", "reference", "cuda"; nothing for another name.
std::optional<Device> DeviceByName(std::string_view name);

// `threads`: CPU threads, 0 for the cores this process may use. CPU backends
// of one process share their threads. FAILED_PRECONDITION when the build has
// no such device, INVALID_ARGUMENT when `threads` is out of range.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(Device device,
                                                     int32_t threads);

}  // namespace nibble::kernels
