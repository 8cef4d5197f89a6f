#include "kernels/linear.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
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
                        .stages = 3,
                        .variant = "shared"})
                .ToString(),
            "wide:gemm tile=4x16 split_k=2 stages=3 variant=shared");
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

TEST(LaunchSpec, IsReadBack) {
  for (const LaunchSpec& spec :
       {LaunchSpec{.kernel = "gemv"}, LaunchSpec{.path = LinearPath::kWide,
                                      .kernel = "gemm_q8_4x16",
                                      .tile_m = 4,
                                      .tile_n = 16,
                                      .split_k = 2,
                                      .stages = 3,
                                      .variant = "shared_2"}}) {
    const auto read = LaunchSpec::Parse(spec.ToString());
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, spec);
  }
}

TEST(LaunchSpec, RefusesWhatItDidNotPrint) {
  for (const char* text :
       {"", "gemv", "narrow:", "narrow: tile=1x1", "broad:gemv",
        "narrow:gemv tile=1", "narrow:gemv tile=ax2", "narrow:gemv tile=-1x2",
        "narrow:gemv split_k=0", "narrow:gemv stages=", "narrow:gemv  stages=2",
        "narrow:gemv colour=2", "narrow:gemv variant=", "narrow:gemv variant=A",
        "narrow:Gemv", "narrow:gemv tile=1x99999999999",
        "narrow:gemv tile=1x2x3"}) {
    EXPECT_EQ(LaunchSpec::Parse(text).status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
}

TEST(LinearPlan, IsReadBack) {
  const std::string text =
      "1..1 narrow:gemv (1.5 us) | 2..8 narrow:gemv tile=4x8 (2.0 us) | "
      "9.. wide:gemm split_k=2";
  const auto plan = LinearPlan::Parse(text);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->ToString(), text);
  ASSERT_EQ(plan->buckets().size(), 3);
  EXPECT_EQ(plan->buckets()[1].max_rows, 8);
  EXPECT_EQ(plan->buckets()[1].us, 2.0);
  EXPECT_EQ(plan->buckets()[2].max_rows, std::numeric_limits<int64_t>::max());
}

TEST(LinearPlan, RefusesWhatItDidNotPrint) {
  for (const char* text :
       {"", " ", "1..", "1.. ", "1..8 narrow:a", "2.. narrow:a",
        "1..8 narrow:a | 8.. narrow:b", "1..8 narrow:a | 9..9 narrow:b",
        "1..0 narrow:a | 1.. narrow:b", "1..8 narrow:a | ",
        "1..8 narrow:a | 9.. ", "1.. narrow:a (1.0 us", "1.. narrow:a (us)",
        "1.. narrow:a (nan us)", "1.. narrow:a (-1 us)",
        "1.. narrow:a (1.0 us) x",
        "1..9223372036854775807 narrow:a | 1.. narrow:b",
        "1..99999999999999999999 narrow:a | 1.. narrow:b"}) {
    EXPECT_EQ(LinearPlan::Parse(text).status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
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
