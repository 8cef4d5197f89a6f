// How many threads a process may usefully run.
#pragma once

#include <optional>
#include <string_view>

namespace nibble::kernels::cpu {

// The number of cores in the affinity mask of the process, or fewer where a
// cgroup's CPU quota (version 1 or 2) allows less; at least 1.
int UsableCpus();

// The cores that cpu.max of cgroup v2 ("200000 100000", "max 100000") allows,
// rounded up; nothing when it sets no limit or does not parse.
std::optional<int> QuotaOfCpuMax(std::string_view text);

}  // namespace nibble::kernels::cpu
