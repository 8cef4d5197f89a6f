#include "engine/memory.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace nibble::engine {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;

// A folder that stands for "/". Removed with the test.
class MemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/memory_test_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
    Write("/proc/meminfo",
          "MemTotal:       16777216 kB\n"
          "MemFree:         1048576 kB\n"
          "MemAvailable:    8388608 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  int64_t Available() {
    const auto bytes = AvailableMemoryBytes(root_);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return bytes.value_or(-1);
  }

  std::string root_;
};

TEST_F(MemoryTest, WithoutCgroupWhatTheMachineHas) {
  EXPECT_EQ(Available(), 8 * kGib);
}

TEST_F(MemoryTest, Version2TakesTheTightestAncestor) {
  Write("/proc/self/cgroup", "0::/outer/inner\n");
  const std::string outer = "/sys/fs/cgroup/outer";
  Write(outer + "/memory.max", std::to_string(3 * kGib));
  Write(outer + "/memory.current", std::to_string(kGib));
  Write(outer + "/inner/memory.max", "max\n");
  Write(outer + "/inner/memory.current", std::to_string(kGib));
  EXPECT_EQ(Available(), 2 * kGib);
  Write(outer + "/inner/memory.max", std::to_string(kGib + 4096));
  EXPECT_EQ(Available(), 4096);
}

TEST_F(MemoryTest, PageCacheOfTheGroupIsAvailable) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", std::to_string(2 * kGib));
  Write("/sys/fs/cgroup/memory.current", std::to_string(2 * kGib));
  EXPECT_EQ(Available(), 0);
  Write("/sys/fs/cgroup/memory.stat",
        "anon 5\nactive_file 7\ninactive_file " + std::to_string(kGib) + "\n");
  EXPECT_EQ(Available(), kGib);
}

TEST_F(MemoryTest, AGroupMayBeLargerThanTheMachine) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory.current", "4096\n");
  EXPECT_EQ(Available(), 8 * kGib);
}

TEST_F(MemoryTest, Version1) {
  Write("/proc/self/cgroup",
        "5:cpu,cpuacct:/elsewhere\n4:memory:/group\n0::/unified\n");
  const std::string group = "/sys/fs/cgroup/memory/group";
  Write(group + "/memory.limit_in_bytes", std::to_string(4 * kGib));
  Write(group + "/memory.usage_in_bytes", std::to_string(2 * kGib));
  Write(group + "/memory.stat", "total_inactive_file 1024\n");
  EXPECT_EQ(Available(), 2 * kGib + 1024);
}

TEST_F(MemoryTest, MissingOrUnreadableIsAnError) {
  Write("/proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: much\n");
  EXPECT_EQ(AvailableMemoryBytes(root_).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(AvailableMemoryTest, ThisMachine) {
  const auto bytes = AvailableMemoryBytes();
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_GT(*bytes, 0);
}

}  // namespace
}  // namespace nibble::engine
