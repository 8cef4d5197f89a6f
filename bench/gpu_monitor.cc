#include "bench/gpu_monitor.h"

#include <dlfcn.h>

#include <type_traits>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/runtime.h"

namespace nibble::bench {
namespace {

// nvmlClockType_t
constexpr int kClockSm = 1;

}  // namespace

void ConditionMean::Add(const Condition& condition) {
  sum_.sm_mhz += condition.sm_mhz;
  sum_.watts += condition.watts;
  ++count_;
}

Condition ConditionMean::Mean() const {
  if (count_ == 0) return {};
  return {.sm_mhz = sum_.sm_mhz / count_, .watts = sum_.watts / count_};
}

absl::StatusOr<GpuMonitor> GpuMonitor::Open(int device) {
  void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::NotFoundError(absl::StrCat("NVML: ", dlerror()));
  }
  GpuMonitor monitor;
  int (*init)() = nullptr;
  int (*find)(const char* bus_id, void** device) = nullptr;
  const auto load = [library](const char* name, auto*& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
        dlsym(library, name));
    return function != nullptr;
  };
  if (!load("nvmlInit_v2", init) ||
      !load("nvmlDeviceGetHandleByPciBusId_v2", find) ||
      !load("nvmlDeviceGetClockInfo", monitor.clock_) ||
      !load("nvmlDeviceGetPowerUsage", monitor.milliwatts_)) {
    return absl::NotFoundError("NVML lacks functions");
  }
  char bus_id[32];
  NIBBLE_CUDA_CHECK(
      cudaDeviceGetPCIBusId(bus_id, static_cast<int>(sizeof bus_id), device));
  int failed = init();
  if (failed == 0) failed = find(bus_id, &monitor.device_);
  if (failed != 0) return absl::NotFoundError(absl::StrCat("NVML: ", failed));
  return monitor;
}

Condition GpuMonitor::Read() const {
  unsigned mhz = 0, milliwatts = 0;
  if (clock_(device_, kClockSm, &mhz) != 0) mhz = 0;
  if (milliwatts_(device_, &milliwatts) != 0) milliwatts = 0;
  return {.sm_mhz = static_cast<double>(mhz), .watts = 1e-3 * milliwatts};
}

}  // namespace nibble::bench
