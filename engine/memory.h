// How much memory this process can still take.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace nibble::engine {

// Bytes that can be allocated without swapping: MemAvailable of
// /proc/meminfo, or less where a cgroup (version 1 or 2) leaves less; page
// cache a cgroup can drop counts as available. `root` stands before every
// path, "" for the real files.
absl::StatusOr<int64_t> AvailableMemoryBytes(const std::string& root = "");

}  // namespace nibble::engine
