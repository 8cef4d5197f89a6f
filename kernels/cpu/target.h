// The instruction sets that 8-bit dot products are written for.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace nibble::kernels::cpu {

// In order of preference, the best last. The results of all are the same
// bits: sums of products are exact integers and every float operation is
// written once (dot.h).
enum class CpuTarget : uint8_t {
  kPortable,
  kNeon,
  kNeonDotprod,
  kNeonI8mm,
  kAvx2,
  kAvxVnni,
  kAvx512Vnni
};

std::string_view TargetName(CpuTarget target);

// Whether this build and this machine can run it; kPortable always can.
bool TargetAvailable(CpuTarget target);

// One that this build and this machine can run, by its name.
std::optional<CpuTarget> TargetByName(std::string_view name);

// The best available target that is not above `limit`.
CpuTarget BestTarget(CpuTarget limit);

// Lets nothing in this process use a better instruction set than `limit`, the
// kernels that Highway compiled included. For measurements; to be called before
// the first backend is made.
void LimitTargets(CpuTarget limit);

// Every available target, the best last.
std::vector<CpuTarget> AvailableTargets();

}  // namespace nibble::kernels::cpu
