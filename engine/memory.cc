#include "engine/memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace nibble::engine {
namespace {

constexpr std::string_view kCgroupRoot = "/sys/fs/cgroup";

// The first number of a file; nothing for "max" or without the file.
std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// The number after `key` in a file of "key value" lines.
std::optional<int64_t> ReadField(const std::string& path,
                                 std::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string name;
    int64_t value = 0;
    if (fields >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

// The files of one version of the memory controller.
struct CgroupFiles {
  std::string_view limit;
  std::string_view usage;
  std::string_view reclaimable;  // key in memory.stat
};
constexpr CgroupFiles kVersion1 = {
    "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr CgroupFiles kVersion2 = {"memory.max", "memory.current",
                                   "inactive_file"};

// What the group in `folder` leaves; nothing when it sets no limit.
std::optional<int64_t> GroupLeaves(const std::string& folder,
                                   const CgroupFiles& files) {
  const auto limit =
      ReadNumber(absl::StrCat(folder, "/", std::string(files.limit)));
  const auto usage =
      ReadNumber(absl::StrCat(folder, "/", std::string(files.usage)));
  if (!limit || !usage) return std::nullopt;
  const int64_t reclaimable =
      ReadField(folder + "/memory.stat", files.reclaimable).value_or(0);
  const int64_t held = std::max<int64_t>(*usage - reclaimable, 0);
  return std::max<int64_t>(*limit - held, 0);
}

// The least that a group or one of its ancestors leaves. A container may see
// its own group as the root, so folders that do not exist are no error.
std::optional<int64_t> HierarchyLeaves(const std::string& mount,
                                       std::string path,
                                       const CgroupFiles& files) {
  std::optional<int64_t> least;
  while (true) {
    if (const auto leaves = GroupLeaves(mount + path, files)) {
      least = std::min(least.value_or(*leaves), *leaves);
    }
    const size_t slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) return least;
    path.resize(slash);
  }
}

// What the groups this process is in leave. A line of /proc/self/cgroup is
// "id:controllers:path"; version 2 has the one line "0::path".
std::optional<int64_t> CgroupLeaves(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  const std::string mount = root + std::string(kCgroupRoot);
  std::optional<int64_t> least;
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second =
        first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers =
        "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    std::optional<int64_t> leaves;
    if (controllers == ",,") {
      leaves = HierarchyLeaves(mount, path, kVersion2);
    } else if (controllers.find(",memory,") != std::string::npos) {
      leaves = HierarchyLeaves(mount + "/memory", path, kVersion1);
    }
    if (leaves) least = std::min(least.value_or(*leaves), *leaves);
  }
  return least;
}

}  // namespace

absl::StatusOr<int64_t> AvailableMemoryBytes(const std::string& root) {
  const std::string path = root + "/proc/meminfo";
  const std::optional<int64_t> kib = ReadField(path, "MemAvailable:");
  if (!kib) {
    return absl::UnavailableError(
        absl::StrCat(path, ": has no line MemAvailable"));
  }
  const int64_t bytes = *kib * 1024;
  return std::min(bytes, CgroupLeaves(root).value_or(bytes));
}

}  // namespace nibble::engine
