#include "kernels/cuda/device.h"

#include <gtest/gtest.h>

namespace nibble::kernels::cuda {
namespace {

// Pass with any number of GPUs, none included, and with any driver.
TEST(ListDevices, NamesEveryDeviceItFinds) {
  const auto devices = ListDevices();
  if (!devices.ok()) {
    // Only an old driver may be refused.
    EXPECT_EQ(devices.status().code(), absl::StatusCode::kFailedPrecondition)
        << devices.status();
    return;
  }
  for (size_t i = 0; i < devices->size(); ++i) {
    const DeviceInfo& device = (*devices)[i];
    EXPECT_EQ(device.index, static_cast<int>(i));
    EXPECT_FALSE(device.name.empty());
    EXPECT_GE(device.compute_major, 5) << device.ToString();
    EXPECT_GT(device.multiprocessors, 0) << device.ToString();
    EXPECT_GT(device.memory_bytes, 0) << device.ToString();
    EXPECT_GE(device.shared_memory_bytes, 48 << 10) << device.ToString();
  }
}

TEST(ListDevices, AnswersTheSameTwice) {
  const auto first = ListDevices();
  const auto second = ListDevices();
  ASSERT_EQ(first.status(), second.status());
  if (first.ok()) {
    EXPECT_EQ(first->size(), second->size());
  }
}

TEST(DeviceInfo, PrintsAsOneLine) {
  const DeviceInfo device = {.index = 1,
                             .name = "NVIDIA H200",
                             .compute_major = 9,
                             .compute_minor = 0,
                             .multiprocessors = 132,
                             .memory_bytes = int64_t{140} << 30};
  EXPECT_EQ(device.ToString(),
            "cuda:1 NVIDIA H200, compute 9.0, 132 SMs, 140.0 GiB");
}

}  // namespace
}  // namespace nibble::kernels::cuda
