// Devices and layouts to ask the planning of W4A16 launches about.
#pragma once

#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/linear/w4_layout.h"

namespace nibble::test {

// Shared memory of a CTA: CUDA C++ Programming Guide, "Technical
// Specifications per Compute Capability".
inline kernels::cuda::DeviceInfo TestDevice(int major, int minor,
                                            int multiprocessors,
                                            int shared_kib) {
  return {.index = 0,
          .name = "test",
          .compute_major = major,
          .compute_minor = minor,
          .multiprocessors = multiprocessors,
          .memory_bytes = int64_t{80} << 30,
          .shared_memory_bytes = int64_t{shared_kib} << 10};
}

// One of each compute capability from 8.0 to 12.0.
inline const std::vector<kernels::cuda::DeviceInfo>& TestDevices() {
  static const std::vector<kernels::cuda::DeviceInfo> devices = {
      TestDevice(8, 0, 108, 163), TestDevice(8, 6, 84, 99),
      TestDevice(8, 7, 16, 163),  TestDevice(8, 9, 24, 99),
      TestDevice(9, 0, 132, 227), TestDevice(10, 0, 148, 227),
      TestDevice(12, 0, 170, 99)};
  return devices;
}

inline const std::vector<kernels::cuda::W4Layout>& TestLayouts() {
  using kernels::cuda::W4Code;
  using kernels::cuda::W4Layout;
  using kernels::cuda::W4Scale;
  static const std::vector<W4Layout> layouts = [] {
    std::vector<W4Layout> all;
    for (const int group : {32, 64, 128}) {
      for (const W4Scale scale :
           {W4Scale::kScale, W4Scale::kScaleMin, W4Scale::kScaleZero}) {
        all.push_back({W4Code::kInt4, scale, group});
      }
    }
    all.push_back({W4Code::kInt4, W4Scale::kQ4K, 32});
    all.push_back({W4Code::kE2m1, W4Scale::kE8m0, 32});
    all.push_back({W4Code::kE2m1, W4Scale::kE4m3, 16});
    return all;
  }();
  return layouts;
}

}  // namespace nibble::test
