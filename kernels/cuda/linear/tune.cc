#include "kernels/cuda/linear/tune.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/check.h"

namespace nibble::kernels::cuda {
namespace {

// Runs whose median counts; one before them pays for loading the kernel.
constexpr int kRuns = 5;

// A candidate whose first two runs both take this many times the best median
// is not run again: runs scatter by some percent.
constexpr double kHopeless = 1.3;

// The neighbour's spec stays unless another is faster by more than this, which
// is what medians of five runs differ by on an idle GPU. Fewer different specs
// are fewer kernels to load.
constexpr double kNoise = 0.01;

// The buckets, one after the other; what the last one decided is the next
// one's favourite. Lives on a stack.
class Tuner final {
 public:
  Tuner(const TuneProblem& problem, const TuneOptions& options)
      : problem_(problem),
        end_seconds_(problem.now_seconds() + options.budget_seconds) {}

  // The bucket for first .. last rows.
  LinearPlan::Bucket Choose(int64_t first, int64_t last) {
    std::vector<LaunchSpec> specs = problem_.candidates(last);
    std::erase_if(specs, [&](const LaunchSpec& spec) {
      return !problem_.feasible(first, spec) || !problem_.feasible(last, spec);
    });
    NIBBLE_CHECK(!specs.empty());
    LinearPlan::Bucket best;
    best.max_rows = last;
    best.spec = specs.front();
    // Measured first, the favourite keeps its place among equals.
    std::stable_partition(
        specs.begin(), specs.end(),
        [this](const LaunchSpec& spec) { return spec == favourite_; });
    for (const LaunchSpec& spec : specs) {
      if (!problem_.run_us || problem_.now_seconds() >= end_seconds_) {
        complete_ = false;
        break;
      }
      const double us = MedianUs(last, spec, best.us);
      if (best.us == 0 || us < best.us * (1 - kNoise)) {
        best.us = us;
        best.spec = spec;
      }
    }
    favourite_ = best.spec;
    return best;
  }

  bool complete() const { return complete_; }

 private:
  double MedianUs(int64_t rows, const LaunchSpec& spec, double best_us) const {
    problem_.run_us(rows, spec);
    std::array<double, kRuns> us;
    for (int i = 0; i < kRuns; ++i) {
      us[i] = problem_.run_us(rows, spec);
      if (i == 1 && best_us > 0 &&
          std::min(us[0], us[1]) > kHopeless * best_us) {
        return std::min(us[0], us[1]);
      }
    }
    std::nth_element(us.begin(), us.begin() + kRuns / 2, us.end());
    return us[kRuns / 2];
  }

  const TuneProblem& problem_;
  double end_seconds_;
  LaunchSpec favourite_;
  bool complete_ = true;
};

}  // namespace

std::vector<int64_t> BucketRows(int64_t max_rows) {
  NIBBLE_CHECK_GE(max_rows, 1);
  std::vector<int64_t> rows;
  for (int64_t m = 1; m < max_rows; m *= 2) rows.push_back(m);
  rows.push_back(max_rows);
  return rows;
}

TuneResult Tune(const TuneProblem& problem, const TuneOptions& options) {
  Tuner tuner(problem, options);
  std::vector<LinearPlan::Bucket> buckets;
  int64_t first = 1;
  for (const int64_t last : BucketRows(options.max_rows)) {
    LinearPlan::Bucket bucket = tuner.Choose(first, last);
    if (!buckets.empty() && buckets.back().spec == bucket.spec) {
      buckets.back() = std::move(bucket);  // the time is that of the larger M
    } else {
      buckets.push_back(std::move(bucket));
    }
    first = last + 1;
  }
  buckets.back().max_rows = std::numeric_limits<int64_t>::max();
  return {.plan = LinearPlan(std::move(buckets)), .complete = tuner.complete()};
}

bool PlanIsFeasible(const LinearPlan& plan, const TuneProblem& problem,
                    int64_t max_rows) {
  int64_t first = 1;
  for (const LinearPlan::Bucket& bucket : plan.buckets()) {
    const int64_t last = std::min(bucket.max_rows, max_rows);
    if (!problem.feasible(first, bucket.spec) ||
        !problem.feasible(last, bucket.spec)) {
      return false;
    }
    if (bucket.max_rows >= max_rows) return true;
    first = last + 1;
  }
  return false;  // it ends before max_rows, or is empty
}

}  // namespace nibble::kernels::cuda
