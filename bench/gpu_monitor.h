// The device's clock and power while something is measured, from NVML, the
// driver's library for that, which is opened when it is first wanted.
#pragma once

#include "absl/status/statusor.h"

namespace nibble::bench {

// What the device does, or did on the average; 0: not known. By value.
struct Condition {
  double sm_mhz = 0;
  double watts = 0;
};

// Means of conditions, as they come in. By value.
class ConditionMean final {
 public:
  void Add(const Condition& condition);
  Condition Mean() const;  // of none: not known

 private:
  Condition sum_;
  int count_ = 0;
};

// Reads one device's sensors. Copyable; the library stays open until the
// process ends.
class GpuMonitor final {
 public:
  // `device`: as the CUDA runtime counts. NOT_FOUND, with the loader's words or
  // NVML's code, where it cannot be watched.
  static absl::StatusOr<GpuMonitor> Open(int device);

  Condition Read() const;

 private:
  using ReadNumber = int (*)(void* device, unsigned* number);
  using ReadClock = int (*)(void* device, int clock, unsigned* mhz);

  void* device_ = nullptr;  // NVML's handle
  ReadClock clock_ = nullptr;
  ReadNumber milliwatts_ = nullptr;
};

}  // namespace nibble::bench
