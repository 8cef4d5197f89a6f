#include "kernels/host_buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

namespace nibble::kernels {
namespace {

TEST(HostBuffer, IsZeroFilledAndAligned) {
  const auto buffer = AllocateHostBuffer(1001);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_EQ((*buffer)->size_bytes(), 1001);
  const auto* data = static_cast<const char*>((*buffer)->data());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
  EXPECT_TRUE(std::all_of(data, data + 1001, [](char c) { return c == 0; }));
}

TEST(HostBuffer, MayBeEmpty) {
  const auto buffer = AllocateHostBuffer(0);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ((*buffer)->size_bytes(), 0);
}

TEST(HostBuffer, RefusesMoreThanTheMachineHas) {
  const auto buffer = AllocateHostBuffer(int64_t{1} << 60);
  EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(buffer.status().message()),
              testing::HasSubstr("1152921504606846976 bytes"));
}

}  // namespace
}  // namespace nibble::kernels
