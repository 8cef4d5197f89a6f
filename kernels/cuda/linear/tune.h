// From feasible ways to run a linear layer and their times to its plan. No
// CUDA in here: the device is behind TuneProblem's functions.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/linear.h"

namespace nibble::kernels::cuda {

// What there is to choose from, and how to measure it. Used by one thread.
struct TuneProblem {
  // The ways to run `rows` rows, cheapest guess first; never empty.
  std::function<std::vector<LaunchSpec>(int64_t rows)> candidates;
  std::function<bool(int64_t rows, const LaunchSpec& spec)> feasible;
  // One run, caches cold, in microseconds; empty to measure nothing.
  std::function<double(int64_t rows, const LaunchSpec& spec)> run_us;
  // A clock, for the budget.
  std::function<double()> now_seconds;
};

struct TuneOptions {
  int64_t max_rows = 512;  // the largest M that the plan must serve
  // After this the rest of the buckets takes the first candidate, unmeasured.
  double budget_seconds = 1.0;
};

struct TuneResult {
  LinearPlan plan;
  bool complete = false;  // every bucket was measured
};

// The numbers of rows to measure: powers of two, then max_rows.
std::vector<int64_t> BucketRows(int64_t max_rows);

// For each bucket the spec that is fastest at the bucket's largest M and can
// run all of it; equal neighbours become one bucket. The last has no end.
TuneResult Tune(const TuneProblem& problem, const TuneOptions& options);

// Whether every bucket's spec can run the bucket, up to max_rows: what a plan
// from a file is asked before it is believed.
bool PlanIsFeasible(const LinearPlan& plan, const TuneProblem& problem,
                    int64_t max_rows);

}  // namespace nibble::kernels::cuda
