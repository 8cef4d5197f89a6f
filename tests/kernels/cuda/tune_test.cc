#include "kernels/cuda/linear/tune.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace nibble::kernels::cuda {
namespace {

constexpr int64_t kNoEnd = std::numeric_limits<int64_t>::max();

LaunchSpec Spec(const std::string& kernel) { return {.kernel = kernel}; }

// A device of three kernels: `small` runs up to 16 rows, `mid` any number,
// `slow` any number and never well.
class FakeDevice final {
 public:
  TuneProblem Problem() {
    return {.candidates =
                [this](int64_t rows) {
                  std::vector<LaunchSpec> specs;
                  if (rows <= 16) specs.push_back(Spec("small"));
                  specs.push_back(Spec("mid"));
                  specs.push_back(Spec("slow"));
                  return specs;
                },
            .feasible =
                [](int64_t rows, const LaunchSpec& spec) {
                  return spec.kernel != "small" || rows <= 16;
                },
            .run_us =
                [this](int64_t rows, const LaunchSpec& spec) {
                  now_seconds_ += run_seconds;
                  const int run = runs[{rows, spec.kernel}]++;
                  return time_us(rows, spec.kernel, run);
                },
            .now_seconds = [this] { return now_seconds_; }};
  }

  static double Steady(int64_t rows, const std::string& kernel, int /*run*/) {
    if (kernel == "small") return 10 + 1.0 * static_cast<double>(rows);
    if (kernel == "mid") return 17 + 0.1 * static_cast<double>(rows);
    return 100;
  }

  std::function<double(int64_t, const std::string&, int)> time_us = Steady;
  double run_seconds = 1e-4;
  std::map<std::pair<int64_t, std::string>, int> runs;

 private:
  double now_seconds_ = 5;
};

TEST(BucketRows, ArePowersOfTwoAndThenTheLargest) {
  EXPECT_EQ(BucketRows(1), std::vector<int64_t>({1}));
  EXPECT_EQ(BucketRows(2), std::vector<int64_t>({1, 2}));
  EXPECT_EQ(BucketRows(6), std::vector<int64_t>({1, 2, 4, 6}));
  EXPECT_EQ(BucketRows(512),
            std::vector<int64_t>({1, 2, 4, 8, 16, 32, 64, 128, 256, 512}));
}

TEST(Tune, TakesTheFastestOfEachBucketAndMergesEqualNeighbours) {
  FakeDevice device;
  const TuneResult result = Tune(device.Problem(), {.max_rows = 64});
  EXPECT_TRUE(result.complete);
  EXPECT_EQ(result.plan.ToString(),
            "1..4 narrow:small (14.0 us) | 5.. narrow:mid (23.4 us)");
  EXPECT_EQ(result.plan.buckets().back().max_rows, kNoEnd);
}

TEST(Tune, ServesOneRow) {
  FakeDevice device;
  EXPECT_EQ(Tune(device.Problem(), {.max_rows = 1}).plan.ToString(),
            "1.. narrow:small (11.0 us)");
}

TEST(Tune, LeavesOutWhatCannotRunTheWholeBucket) {
  FakeDevice device;
  device.time_us = [](int64_t, const std::string& kernel, int) {
    return kernel == "odd" ? 1.0 : 20.0;
  };
  TuneProblem problem = device.Problem();
  problem.candidates = [](int64_t) {
    return std::vector<LaunchSpec>{Spec("odd"), Spec("mid")};
  };
  // Not 3, with which the bucket 3..4 begins.
  problem.feasible = [](int64_t rows, const LaunchSpec& spec) {
    return spec.kernel != "odd" || rows != 3;
  };
  EXPECT_EQ(Tune(problem, {.max_rows = 8}).plan.ToString(),
            "1..2 narrow:odd (1.0 us) | 3..4 narrow:mid (20.0 us) | "
            "5.. narrow:odd (1.0 us)");
}

TEST(Tune, IsNotFooledByOutliersNorByTheFirstRun) {
  FakeDevice device;
  device.time_us = [](int64_t rows, const std::string& kernel, int run) {
    if (run == 0) return 1000.0;                   // the kernel is loaded
    if (run == 1 || run == 4) return 500.0;        // something else ran
    if (kernel == "slow" && run == 2) return 0.1;  // the clock was off
    return FakeDevice::Steady(rows, kernel, run);
  };
  EXPECT_EQ(Tune(device.Problem(), {.max_rows = 4}).plan.ToString(),
            "1.. narrow:small (14.0 us)");
}

TEST(Tune, KeepsTheNeighboursSpecWhenNoneIsClearlyFaster) {
  FakeDevice device;
  device.time_us = [](int64_t rows, const std::string& kernel, int) {
    // From 2 rows on `mid` is faster by half a percent, at 16 by five.
    if (kernel == "small") return 10.0;
    if (kernel == "mid") return rows == 1 ? 12.0 : rows < 16 ? 9.95 : 9.5;
    return 50.0;
  };
  EXPECT_EQ(Tune(device.Problem(), {.max_rows = 16}).plan.ToString(),
            "1..8 narrow:small (10.0 us) | 9.. narrow:mid (9.5 us)");
}

TEST(Tune, DoesNotRepeatHopelessCandidates) {
  FakeDevice device;
  Tune(device.Problem(), {.max_rows = 1});
  EXPECT_EQ((device.runs[{1, "slow"}]), 3);
  EXPECT_EQ((device.runs[{1, "small"}]), 6);
}

TEST(Tune, GuessesWhenTheBudgetIsSpent) {
  FakeDevice device;
  device.run_seconds = 0.1;  // 15 runs for the first bucket
  const TuneResult result =
      Tune(device.Problem(), {.max_rows = 64, .budget_seconds = 2.0});
  EXPECT_FALSE(result.complete);
  // One row was measured, two in part, the rest guessed.
  EXPECT_EQ(result.plan.buckets().front().spec, Spec("small"));
  EXPECT_EQ(result.plan.ForRows(16), Spec("small"));
  EXPECT_EQ(result.plan.ForRows(64), Spec("mid"));
  EXPECT_EQ(result.plan.buckets().back().us, 0);
}

TEST(Tune, GuessesWithoutATimer) {
  FakeDevice device;
  TuneProblem problem = device.Problem();
  problem.run_us = nullptr;
  const TuneResult result = Tune(problem, {.max_rows = 64});
  EXPECT_FALSE(result.complete);
  EXPECT_EQ(result.plan.ToString(), "1..16 narrow:small | 17.. narrow:mid");
}

TEST(TuneDeathTest, NeedsACandidate) {
  FakeDevice device;
  TuneProblem problem = device.Problem();
  problem.candidates = [](int64_t) { return std::vector<LaunchSpec>(); };
  EXPECT_DEATH(Tune(problem, {.max_rows = 1}), "empty");
}

TEST(PlanIsFeasible, AsksBothEndsOfEveryBucket) {
  FakeDevice device;
  const TuneProblem problem = device.Problem();
  const auto feasible = [&](const std::string& text, int64_t max_rows) {
    return PlanIsFeasible(LinearPlan::Parse(text).value(), problem, max_rows);
  };
  EXPECT_TRUE(feasible("1..16 narrow:small | 17.. narrow:mid", 512));
  EXPECT_TRUE(feasible("1.. narrow:small", 16));
  EXPECT_FALSE(feasible("1.. narrow:small", 17));
  EXPECT_FALSE(feasible("1..17 narrow:small | 18.. narrow:mid", 512));
  EXPECT_FALSE(feasible("1..16 narrow:mid | 17.. narrow:small", 512));
  EXPECT_FALSE(PlanIsFeasible(LinearPlan(), problem, 1));
  EXPECT_FALSE(PlanIsFeasible(LinearPlan(std::vector<LinearPlan::Bucket>{
                                  {.max_rows = 8, .spec = Spec("mid")}}),
                              problem, 9));
}

}  // namespace
}  // namespace nibble::kernels::cuda
