#include "kernels/linear.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace nibble::kernels {
namespace {

LinearPlan ThreeBuckets() {
  return LinearPlan(
      {{.max_rows = 1, .spec = {.kernel = "gemv"}},
       {.max_rows = 8, .spec = {.kernel = "gemv", .tile_m = 4, .tile_n = 8}},
       {.max_rows = 512,
        .spec = {.path = LinearPath::kWide, .kernel = "gemm", .split_k = 2}}});
}

TEST(LaunchSpec, PrintsWhatDiffersFromTheDefault) {
  EXPECT_EQ((LaunchSpec{.kernel = "gemv"}).ToString(), "narrow:gemv");
  EXPECT_EQ((LaunchSpec{.path = LinearPath::kWide,
                        .kernel = "gemm",
                        .tile_m = 4,
                        .tile_n = 16,
                        .split_k = 2,
                        .stages = 3})
                .ToString(),
            "wide:gemm tile=4x16 split_k=2 stages=3");
}

TEST(LinearPlan, FindsTheBucketOfEachNumberOfRows) {
  const LinearPlan plan = ThreeBuckets();
  const auto bucket_of = [&](int64_t rows) {
    return &plan.ForRows(rows) == &plan.buckets()[0].spec   ? 0
           : &plan.ForRows(rows) == &plan.buckets()[1].spec ? 1
                                                            : 2;
  };
  EXPECT_EQ(bucket_of(1), 0);
  EXPECT_EQ(bucket_of(2), 1);
  EXPECT_EQ(bucket_of(8), 1);
  EXPECT_EQ(bucket_of(9), 2);
  EXPECT_EQ(bucket_of(512), 2);
  EXPECT_EQ(bucket_of(513), 2);
  EXPECT_EQ(bucket_of(int64_t{1} << 40), 2);
}

TEST(LinearPlan, PrintsAsOneLine) {
  EXPECT_EQ(ThreeBuckets().ToString(),
            "1..1 narrow:gemv | 2..8 narrow:gemv tile=4x8 | "
            "9.. wide:gemm split_k=2");
  EXPECT_EQ(
      LinearPlan(std::vector<LinearPlan::Bucket>{
                     {.max_rows = 4, .spec = {.kernel = "a"}, .us = 1.25}})
          .ToString(),
      "1.. narrow:a (1.2 us)");
  EXPECT_EQ(LinearPlan(std::vector<LinearPlan::Bucket>{
                           {.max_rows = std::numeric_limits<int64_t>::max(),
                            .spec = {.kernel = "a"}}})
                .ToString(),
            "1.. narrow:a");
  EXPECT_EQ(LinearPlan().ToString(), "");
}

TEST(LinearPlanDeathTest, RefusesBucketsOutOfOrder) {
  EXPECT_DEATH(
      LinearPlan({{.max_rows = 8, .spec = {}}, {.max_rows = 8, .spec = {}}}),
      "8 vs 8");
  EXPECT_DEATH(
      LinearPlan(std::vector<LinearPlan::Bucket>{{.max_rows = 0, .spec = {}}}),
      "0 vs 0");
}

TEST(LinearPlanDeathTest, NeedsRowsAndBuckets) {
  EXPECT_DEATH(ThreeBuckets().ForRows(0), "rows >= 1");
  EXPECT_DEATH(LinearPlan().ForRows(1), "empty");
}

}  // namespace
}  // namespace nibble::kernels
