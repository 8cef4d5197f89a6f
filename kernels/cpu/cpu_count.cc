#include "kernels/cpu/cpu_count.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "base/checked_math.h"

namespace nibble::kernels::cpu {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The next number of `text`, which loses it and the blanks before it.
std::optional<int64_t> TakeNumber(std::string_view& text) {
  const size_t begin = text.find_first_not_of(" \n");
  if (begin == std::string_view::npos) return std::nullopt;
  text.remove_prefix(begin);
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(rest - text.data());
  return value;
}

// The directory of this process in the hierarchy that `/proc/self/cgroup`
// lists under `controllers` ("" for version 2), e.g. "/docker/1234".
std::string CgroupPath(const std::string& controllers) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    if (first == std::string::npos) continue;
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    if (names == controllers) return line.substr(second + 1);
  }
  return "/";
}

// The least quota of `relative` and of every group above it under `root`, as
// a container may see its own group as the root or by its full path.
template <typename QuotaOf>
std::optional<int> LeastQuota(const std::string& root, std::string relative,
                              QuotaOf quota_of) {
  std::optional<int> least;
  while (true) {
    const std::optional<int> quota = quota_of(root + relative);
    if (quota && (!least || *quota < *least)) least = quota;
    const size_t slash = relative.find_last_of('/');
    if (slash == std::string::npos) return least;
    relative.resize(slash);
  }
}

std::optional<int> QuotaV1(const std::string& folder) {
  const std::string quota_text = ReadFile(folder + "/cpu.cfs_quota_us");
  const std::string period_text = ReadFile(folder + "/cpu.cfs_period_us");
  return QuotaOfCpuMax(quota_text + " " + period_text);
}

std::optional<int> CgroupQuota() {
  const auto v2 = LeastQuota(
      "/sys/fs/cgroup", CgroupPath(""), [](const std::string& folder) {
        return QuotaOfCpuMax(ReadFile(folder + "/cpu.max"));
      });
  const auto v1 =
      LeastQuota("/sys/fs/cgroup/cpu", CgroupPath("cpu,cpuacct"), QuotaV1);
  if (v1 && v2) return std::min(*v1, *v2);
  return v1 ? v1 : v2;
}

int AffinityCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  // More processors than a cpu_set_t holds.
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

std::optional<int> QuotaOfCpuMax(std::string_view text) {
  const std::optional<int64_t> quota_us = TakeNumber(text);
  if (!quota_us || *quota_us <= 0) return std::nullopt;
  const std::optional<int64_t> period_us = TakeNumber(text);
  if (!period_us || *period_us <= 0) return std::nullopt;
  return static_cast<int>(
      std::min<int64_t>(DivideUp(*quota_us, *period_us), 1 << 16));
}

int UsableCpus() {
  int cpus = AffinityCpus();
  if (const std::optional<int> quota = CgroupQuota()) {
    cpus = std::min(cpus, *quota);
  }
  return std::max(cpus, 1);
}

}  // namespace nibble::kernels::cpu
