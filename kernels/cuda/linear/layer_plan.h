// The plan of a packed matrix: kept from earlier, or measured now.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/linear/linear_context.h"
#include "kernels/linear.h"

namespace nibble::kernels::cuda {

// A packed matrix, and how to try ways to run it. Used by one thread.
struct LayerPlanProblem {
  std::string layout;    // of the weights, e.g. "int4-min-g128"
  std::string x_dtype;   // "bf16", "int8", ...
  std::string epilogue;  // "store", "silu_mul"
  int64_t n = 0;
  int64_t k = 0;
  int64_t max_rows = 0;
  // As TuneProblem's.
  std::function<std::vector<LaunchSpec>(int64_t rows)> candidates;
  std::function<bool(int64_t rows, const LaunchSpec& spec)> feasible;
  // Makes buffers, and what enqueues `rows` rows on them; an error where there
  // is no room.
  using Enqueue = std::function<void(int64_t rows, const LaunchSpec& spec)>;
  std::function<absl::StatusOr<Enqueue>()> make_enqueue;
};

// Without a timer, or room for what it would run, the plan is a guess.
LinearPlan MakeLayerPlan(const LayerPlanProblem& problem,
                         const CudaLinearContext& context);

// Device memory [bytes] that is filled with small numbers (in BF16 0.011, in
// FP16 1.06, in INT8 60, in E4M3 1.5): zeros take less power. What a plan is
// measured with.
absl::StatusOr<DeviceBuffer> MakeFilled(int64_t bytes, const Stream& stream);

}  // namespace nibble::kernels::cuda
