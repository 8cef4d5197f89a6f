// The rules of docs/sampling.md up to the greedy choice, on rows small enough
// to work out by hand.
#include "kernels/reference/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "tests/kernels/reference/sampling_test_util.h"

namespace nibble::kernels::reference {
namespace {

using testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kGreatest = std::numeric_limits<float>::max();

TEST(Greedy, TakesTheGreatestAndTheLowestIdAmongEquals) {
  EXPECT_EQ(SampleOnce({1, 2, 3}, SamplingParams{}).token, 2);
  EXPECT_EQ(SampleOnce({1, 3, 3, 2}, SamplingParams{}).token, 1);
  EXPECT_EQ(SampleOnce({-0.0f, 0.0f}, SamplingParams{}).token, 0);
  EXPECT_EQ(SampleOnce({-kInfinity, -5, -kInfinity}, SamplingParams{}).token,
            1);
  EXPECT_EQ(SampleOnce({7}, SamplingParams{}).token, 0);
}

TEST(Greedy, IgnoresFiltersAndSeedBelowTheLimit) {
  for (const float temperature : {0.0f, 1e-6f, 9.9e-6f}) {
    EXPECT_THAT(Kept({1, 2, 3}, {.temperature = temperature,
                                 .top_k = 3,
                                 .top_p = 0.1f,
                                 .min_p = 1,
                                 .typical_p = 0.01f,
                                 .seed = 99}),
                ElementsAre(2));
  }
}

TEST(Finite, RefusesNanAndPositiveInfinityAndNothing) {
  SamplingParams params;
  for (const float temperature : {0.0f, 1.0f}) {
    params.temperature = temperature;
    for (const auto& logits : std::vector<std::vector<float>>{
             {1, kNan}, {kInfinity, 1}, {-kInfinity, -kInfinity}, {kNan}}) {
      const SampleResult result =
          SampleOnce(logits, SampleRow{.params = &params, .num_logprobs = 2});
      EXPECT_FALSE(result.finite);
      EXPECT_EQ(result.token, -1);
      EXPECT_TRUE(result.top.empty());
    }
  }
}

TEST(Finite, ABadRowSpoilsNoLaterOne) {
  Sampler sampler;
  SampleResult result;
  const SamplingParams params;
  const SampleRow row = {.params = &params, .num_logprobs = 1};
  sampler.Sample(std::vector<float>{1, kNan}, row, &result);
  EXPECT_FALSE(result.finite);
  sampler.Sample(std::vector<float>{1, 2}, row, &result);
  EXPECT_TRUE(result.finite);
  EXPECT_EQ(result.token, 1);
  EXPECT_EQ(result.top.size(), 1u);
}

TEST(Finite, EverythingRemovedIsNothingToChooseFrom) {
  const SamplingParams biased = {
      .logit_bias = {{0, -kInfinity}, {1, -kInfinity}}};
  EXPECT_FALSE(SampleOnce({1, 2}, biased).finite);
  const std::vector<int32_t> all = {0, 1};
  for (const float temperature : {0.0f, 1.0f}) {
    const SamplingParams params = {.temperature = temperature};
    const SampleResult result =
        SampleOnce({1, 2}, SampleRow{.params = &params, .banned = all});
    EXPECT_FALSE(result.finite);
    EXPECT_EQ(result.token, -1);
  }
}

TEST(Logprobs, AreThoseOfTheRawLogits) {
  // Raw probabilities 1/2, 1/4, 1/8, 1/8; the bias chooses the last.
  const std::vector<float> logits = LogsOf({0.5, 0.25, 0.125, 0.125});
  const SamplingParams params = {.temperature = 0, .logit_bias = {{3, 100}}};
  const SampleResult result =
      SampleOnce(logits, SampleRow{.params = &params, .num_logprobs = 3});
  EXPECT_EQ(result.token, 3);
  EXPECT_EQ(result.chosen.id, 3);
  EXPECT_EQ(result.chosen.rank, 4);
  EXPECT_NEAR(result.chosen.logprob, std::log(0.125), 1e-6);
  ASSERT_EQ(result.top.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(result.top[i].id, i);
    EXPECT_EQ(result.top[i].rank, i + 1);
    EXPECT_NEAR(result.top[i].logprob, logits[i], 1e-6);
  }
}

TEST(Logprobs, OfMaskedTokensAreMinusInfinity) {
  const SamplingParams params;
  const SampleResult result =
      SampleOnce({-kInfinity, 3, -kInfinity},
                 SampleRow{.params = &params, .num_logprobs = 20});
  ASSERT_EQ(result.top.size(), 3u);
  EXPECT_EQ(result.top[0].logprob, 0);
  EXPECT_EQ(result.top[1].id, 0);
  EXPECT_EQ(result.top[1].logprob, -kInfinity);
  EXPECT_EQ(result.top[2].rank, 3);
}

TEST(Logprobs, ZeroReportsTheChosenOnly) {
  const SamplingParams params;
  const SampleResult with =
      SampleOnce({1, 2}, SampleRow{.params = &params, .num_logprobs = 0});
  EXPECT_TRUE(with.top.empty());
  EXPECT_EQ(with.chosen.rank, 1);
  EXPECT_LT(with.chosen.logprob, 0);
  EXPECT_EQ(SampleOnce({1, 2}, params).chosen.rank, 0);
}

TEST(Logprobs, StandHugeLogits) {
  const SamplingParams params;
  const SampleResult result =
      SampleOnce({kGreatest, kGreatest, -kGreatest},
                 SampleRow{.params = &params, .num_logprobs = 3});
  EXPECT_NEAR(result.chosen.logprob, -std::log(2), 1e-6);
  EXPECT_EQ(result.top[2].logprob, -kInfinity);
}

TEST(ForcedToken, IsReportedAndNotChosen) {
  // Everything else in the row is ignored.
  const SamplingParams params = {.temperature = 1,
                                 .logit_bias = {{1, -kInfinity}}};
  const std::vector<int32_t> banned = {0, 1, 2};
  const SampleResult result =
      SampleOnce(LogsOf({0.5, 0.3, 0.2}), SampleRow{.params = &params,
                                                    .banned = banned,
                                                    .num_logprobs = 1,
                                                    .forced_token = 1});
  EXPECT_TRUE(result.finite);
  EXPECT_EQ(result.token, 1);
  EXPECT_EQ(result.chosen.id, 1);
  EXPECT_EQ(result.chosen.rank, 2);
  EXPECT_NEAR(result.chosen.logprob, std::log(0.3), 1e-6);
  ASSERT_EQ(result.top.size(), 1u);
  EXPECT_EQ(result.top[0].id, 0);
}

TEST(ForcedToken, IsReportedWithoutNumLogprobsToo) {
  const SamplingParams params;
  const SampleResult result = SampleOnce(
      LogsOf({0.75, 0.25}), SampleRow{.params = &params, .forced_token = 1});
  EXPECT_NEAR(result.chosen.logprob, std::log(0.25), 1e-6);
  EXPECT_TRUE(result.top.empty());
}

TEST(Bias, AddsAndRemoves) {
  EXPECT_EQ(SampleOnce({1, 2, 3}, {.logit_bias = {{0, 2.5f}}}).token, 0);
  EXPECT_EQ(SampleOnce({1, 2, 3}, {.logit_bias = {{2, -kInfinity}}}).token, 1);
  EXPECT_THAT(
      Kept({0, 0, 0}, {.temperature = 1, .logit_bias = {{1, -kInfinity}}}),
      ElementsAre(0, 2));
}

TEST(Bias, HugeValuesMakeNoInfinityAndNoNan) {
  for (const float temperature : {0.0f, 1e-4f, 1.0f, 100.0f}) {
    SamplingParams params = {.temperature = temperature};
    params.logit_bias = {{0, 1e38f}, {2, -1e38f}};
    EXPECT_THAT(Kept({1, 2, 3}, params), ElementsAre(0));
    params.logit_bias = {{0, kGreatest}, {1, kGreatest}, {2, -kGreatest}};
    // 0 and 1 both end at the greatest finite value, 2 at the least one.
    const auto kept = Kept({kGreatest, kGreatest, -kGreatest}, params);
    if (temperature < kGreedyTemperature) {
      EXPECT_THAT(kept, ElementsAre(0));
    } else {
      EXPECT_THAT(kept, ElementsAre(0, 1));
    }
  }
}

TEST(Bias, OfARemovedTokenLeavesItRemoved) {
  EXPECT_EQ(SampleOnce({-kInfinity, 1}, {.logit_bias = {{0, kGreatest}}}).token,
            1);
}

// The token that wins among id 0 at `logit` and thresholds on both sides of
// `expected` tells the adjusted logit of id 0.
void ExpectAdjusted(float logit, float expected, SampleRow row) {
  const float step = 1e-5f;
  EXPECT_EQ(SampleOnce({logit, expected - step}, row).token, 0) << logit;
  EXPECT_EQ(SampleOnce({logit, expected + step}, row).token, 1) << logit;
}

TEST(Penalties, RepetitionCountsPromptAndGeneratedOnce) {
  const SamplingParams params = {.repetition_penalty = 1.25f};
  const std::vector<int32_t> zeros = {0, 0, 0};
  for (const SampleRow& row :
       {SampleRow{.params = &params, .prompt_tokens = zeros},
        SampleRow{.params = &params, .generated_tokens = zeros},
        SampleRow{.params = &params,
        .prompt_tokens = zeros,
        .generated_tokens = zeros}}) {
    ExpectAdjusted(2.0f, 1.6f, row);
    ExpectAdjusted(-2.0f, -2.5f, row);
  }
}

TEST(Penalties, RepetitionBelowOneRaises) {
  const SamplingParams params = {.repetition_penalty = 0.5f};
  const std::vector<int32_t> zero = {0};
  const SampleRow row = {.params = &params, .prompt_tokens = zero};
  ExpectAdjusted(2.0f, 4.0f, row);
  ExpectAdjusted(-2.0f, -1.0f, row);
}

TEST(Penalties, PresenceAndFrequencyCountGeneratedOnly) {
  const std::vector<int32_t> zeros = {0, 0, 0};
  const SamplingParams presence = {.presence_penalty = 0.5f};
  ExpectAdjusted(2, 1.5f, {.params = &presence, .generated_tokens = zeros});
  ExpectAdjusted(2, 2, {.params = &presence, .prompt_tokens = zeros});
  const SamplingParams frequency = {.frequency_penalty = 0.5f};
  ExpectAdjusted(2, 0.5f, {.params = &frequency, .generated_tokens = zeros});
  ExpectAdjusted(2, 2, {.params = &frequency, .prompt_tokens = zeros});
  const SamplingParams reward = {.presence_penalty = -1,
                                 .frequency_penalty = -0.5f};
  ExpectAdjusted(2, 4.5f, {.params = &reward, .generated_tokens = zeros});
}

TEST(Penalties, ComeAfterTheBiasAndBeforeTheBans) {
  const std::vector<int32_t> zeros = {0, 0};
  const SamplingParams params = {.presence_penalty = 0.25f,
                                 .frequency_penalty = 0.5f,
                                 .repetition_penalty = 2,
                                 .logit_bias = {{0, 3}}};
  // (1 + 3) / 2 - 0.25 - 2 * 0.5
  SampleRow row = {.params = &params, .generated_tokens = zeros};
  ExpectAdjusted(1, 0.75f, row);
  const std::vector<int32_t> banned = {0};
  row.banned = banned;
  EXPECT_EQ(SampleOnce({100, -100}, row).token, 1);
}

TEST(Penalties, StayFinite) {
  const std::vector<int32_t> tokens = {0, 1};
  const SamplingParams params = {
      .temperature = 1, .presence_penalty = 2, .repetition_penalty = 10};
  const SampleResult result =
      SampleOnce({-kGreatest, -kInfinity},
                 SampleRow{.params = &params, .generated_tokens = tokens});
  EXPECT_TRUE(result.finite);
  EXPECT_EQ(result.token, 0);
}

TEST(Penalties, LeaveNothingBehindForTheNextRow) {
  Sampler sampler;
  SampleResult result;
  const SamplingParams params = {.presence_penalty = 5,
                                 .repetition_penalty = 3};
  const std::vector<int32_t> tokens = {1, 1};
  const std::vector<float> logits = {1, 2};
  sampler.Sample(
      logits,
      {.params = &params, .prompt_tokens = tokens, .generated_tokens = tokens},
      &result);
  EXPECT_EQ(result.token, 0);
  sampler.Sample(logits, {.params = &params}, &result);
  EXPECT_EQ(result.token, 1);
}

TEST(Seed, DecidesWithThePositionAlone) {
  const std::vector<float> logits(1000, 0.0f);
  const SamplingParams params = {.temperature = 1, .seed = 17};
  Sampler used;
  SampleResult result;
  const SamplingParams other = {.temperature = 2, .top_k = 5, .seed = 3};
  used.Sample(std::vector<float>(70, 1.0f), {.params = &other}, &result);
  std::set<int32_t> tokens;
  for (uint64_t position = 0; position < 20; ++position) {
    const SampleRow row = {.params = &params, .position = position};
    used.Sample(logits, row, &result);
    EXPECT_EQ(result.token, SampleOnce(logits, row).token);
    tokens.insert(result.token);
  }
  EXPECT_GT(tokens.size(), 10u);
}

TEST(SamplerDeathTest, RefusesIdsOutsideTheRow) {
  const std::vector<int32_t> outside = {3};
  const std::vector<int32_t> negative = {-1};
  const SamplingParams penal = {.repetition_penalty = 2};
  const SamplingParams none;
  const std::vector<float> logits = {1, 2, 3};
  EXPECT_DEATH(SampleOnce(logits, {.logit_bias = {{3, 1.0f}}}), "check failed");
  EXPECT_DEATH(
      SampleOnce(logits, SampleRow{.params = &penal, .prompt_tokens = outside}),
      "check failed");
  EXPECT_DEATH(
      SampleOnce(logits, SampleRow{.params = &none, .banned = negative}),
      "check failed");
  EXPECT_DEATH(
      SampleOnce(logits, SampleRow{.params = &none, .forced_token = 3}),
      "check failed");
}

}  // namespace
}  // namespace nibble::kernels::reference
