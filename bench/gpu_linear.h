// What all sweeps of bench_kernels are told and work with, and the sweep over
// the W4A16 kernels: M x shape x format, cuBLASLt on 16-bit weights beside
// them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/gpu_monitor.h"
#include "bench/gpu_operands.h"
#include "bench/gpu_rows.h"
#include "bench/gpu_timing.h"
#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/device.h"
#include "kernels/tensor.h"

namespace nibble::bench {

// What to measure. By value.
struct SweepOptions {
  std::vector<Shape> shapes;
  std::vector<W4Format> formats;
  std::vector<int64_t> m;
  kernels::DType x_dtype = kernels::DType::kBF16;  // of x and y
  bool check_only = false;  // every candidate is checked, nothing is timed
  bool every = false;     // every candidate is timed, not each kernel's fastest
  bool portable = false;  // W8A8: the kernel of every device as well
  bool cold_only = false;  // no graphs
  double sustained_s = 0;  // of running back to back; 0: none of it
  // Beginnings of the names of paths to measure; empty: all.
  std::vector<std::string> paths;
  double peak_tflops = 0;  // of the device's dense 16-bit matrix units

  bool Wants(std::string_view path) const;
  // Whether it or a path whose name begins like it is wanted.
  bool WantsAnyOf(std::string_view path) const;
};

// What the sweep works with. Borrowed from main.
struct SweepTools {
  GpuTimer* timer = nullptr;
  const kernels::cuda::CublasLt* cublas = nullptr;  // null: not found
  const GpuMonitor* monitor = nullptr;              // null: cannot be watched
  const kernels::cuda::DeviceInfo* device = nullptr;
  Ceilings ceilings;
  CsvFile* csv = nullptr;
};

// The number of results that were wrong; RESOURCE_EXHAUSTED when the device's
// memory is too small.
absl::StatusOr<int> SweepLinear(const SweepOptions& options,
                                const SweepTools& tools);

}  // namespace nibble::bench
