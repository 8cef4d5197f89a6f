// Plans measured earlier, kept in a text file. No CUDA in here.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "kernels/linear.h"

namespace nibble::kernels::cuda {

// All that a measured plan depends on. By value.
struct PlanKey {
  std::string gpu;       // e.g. "NVIDIA H200"
  std::string cuda;      // driver and runtime, e.g. "13.0/13.0"
  std::string build;     // of the kernels: a hash of their source
  std::string layout;    // of the weights, e.g. "int4-min-g128"
  std::string x_dtype;   // "bf16" or "f16"
  std::string epilogue;  // "store", "silu_mul"
  int64_t n = 0;
  int64_t k = 0;
  int64_t max_rows = 0;

  // One line: "gpu=NVIDIA H200 cuda=13.0/13.0 build=... n=4096 ...".
  std::string ToString() const;
};

// The plans of a file, one line each: "<key> => <plan>". Owned by whoever
// loads models; thread-safe, and safe among processes that share the file: a
// reader sees a whole old or a whole new file, and no writer loses another's
// plans. A line that cannot be read is left out, with a warning in the log,
// and is gone after the next Store. A file that cannot be read or written
// costs a warning and nothing else: plans then live as long as the process.
class PlanCache final {
 public:
  // "" keeps the plans in memory only.
  explicit PlanCache(std::string path);

  std::optional<LinearPlan> Find(const PlanKey& key) const;
  // Replaces the plan of `key`, if there is one.
  void Store(const PlanKey& key, const LinearPlan& plan);

 private:
  using Plans = std::map<std::string, std::string, std::less<>>;  // by key

  // Adds the file's plans to `plans`; those already there stay.
  void ReadInto(Plans& plans) const;
  absl::Status Write(const Plans& plans) const;

  const std::string path_;
  mutable std::mutex mutex_;
  Plans plans_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble::kernels::cuda
