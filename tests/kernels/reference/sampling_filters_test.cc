// The rules of docs/sampling.md from the temperature to the draw, on rows small
// enough to work out by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/kernels/reference/sampling_test_util.h"

namespace nibble::kernels::reference {
namespace {

using testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Temperature, ScalesTheDistribution) {
  // Odds e^(1 / T) to 1; 5 standard deviations of 20,000 draws.
  for (const float temperature : {0.5f, 1.0f, 2.0f, 100.0f}) {
    const auto counts =
        Draws({0, 1}, {.temperature = temperature, .seed = 5}, 20000);
    const double p = 1 / (1 + std::exp(-1.0 / temperature));
    EXPECT_NEAR(counts.at(1) / 20000.0, p, 5 * std::sqrt(p * (1 - p) / 20000));
  }
}

TEST(Temperature, TinyOnesAreNearlyGreedy) {
  EXPECT_THAT(Kept({1, 2, 2.01f}, {.temperature = 1e-4f}), ElementsAre(2));
  EXPECT_THAT(Kept({3e38f, -3e38f, 3e38f}, {.temperature = 1e-5f}),
              ElementsAre(0, 2));
}

TEST(Draw, NeverTakesAMaskedToken) {
  EXPECT_THAT(
      Kept({-kInfinity, 0, -kInfinity, 0, -kInfinity}, {.temperature = 100}),
      ElementsAre(1, 3));
  EXPECT_THAT(Kept({-kInfinity, -kInfinity, 5}, {.temperature = 1}),
              ElementsAre(2));
}

TEST(Draw, TakesTokensInAscendingOrderOfId) {
  // u * total falls into [0, 1) for id 0, [1, 2) for id 1, [2, 3) for id 2.
  const std::vector<float> logits = {0, 0, 0};
  for (const int32_t top_k : {0, 3, 5}) {
    for (const float top_p : {1.0f, 0.9999f}) {
      const SamplingParams params = {
          .temperature = 1, .top_k = top_k, .top_p = top_p, .seed = 8};
      for (uint64_t position = 0; position < 100; ++position) {
        const auto expected = static_cast<int32_t>(UniformAt(8, position) * 3);
        EXPECT_EQ(SampleOnce(logits,
                             SampleRow{.params = &params, .position = position})
                      .token,
                  expected);
      }
    }
  }
}

TEST(TopK, KeepsTheGreatestAndTheLowerIdsAtTheBorder) {
  EXPECT_THAT(Kept({1, 3, 2, 4}, {.temperature = 1, .top_k = 2}),
              ElementsAre(1, 3));
  EXPECT_THAT(Kept({2, 1, 2, 2, 2}, {.temperature = 1, .top_k = 3}),
              ElementsAre(0, 2, 3));
  EXPECT_THAT(Kept({1, 3, 2}, {.temperature = 100, .top_k = 1}),
              ElementsAre(1));
  EXPECT_THAT(Kept({1, 1, 1}, {.temperature = 1, .top_k = 1}), ElementsAre(0));
}

TEST(TopK, OffOrAboveTheVocabularyKeepsAll) {
  for (const int32_t top_k : {0, 3, 4, std::numeric_limits<int32_t>::max()}) {
    EXPECT_THAT(Kept({1, 1, 1}, {.temperature = 1, .top_k = top_k}),
                ElementsAre(0, 1, 2));
  }
}

TEST(TopK, DoesNotCountMaskedTokensIn) {
  EXPECT_THAT(Kept({-kInfinity, 1, -kInfinity}, {.temperature = 1, .top_k = 2}),
              ElementsAre(1));
}

TEST(TopP, KeepsTheShortestBeginning) {
  const std::vector<float> logits = LogsOf({0.125, 0.5, 0.25, 0.125});
  EXPECT_THAT(Kept(logits, {.temperature = 1, .top_p = 0.45f}), ElementsAre(1));
  EXPECT_THAT(Kept(logits, {.temperature = 1, .top_p = 0.6f}),
              ElementsAre(1, 2));
  EXPECT_THAT(Kept(logits, {.temperature = 1, .top_p = 0.8f}),
              ElementsAre(0, 1, 2));
  EXPECT_THAT(Kept(logits, {.temperature = 1, .top_p = 0.95f}),
              ElementsAre(0, 1, 2, 3));
}

TEST(TopP, ReachedExactlyIsReached) {
  const std::vector<float> equal(10, 0.0f);
  EXPECT_THAT(Kept(equal, {.temperature = 1, .top_p = 0.3f}),
              ElementsAre(0, 1, 2));
  EXPECT_THAT(Kept({0, 0, 0, 0}, {.temperature = 1, .top_p = 0.5f}),
              ElementsAre(0, 1));
}

TEST(TopP, KeepsOneTokenAtLeast) {
  EXPECT_THAT(Kept({0, 0, 0}, {.temperature = 1, .top_p = 1e-30f}),
              ElementsAre(0));
  EXPECT_THAT(Kept({0, 1, 0}, {.temperature = 100, .top_p = 1e-30f}),
              ElementsAre(1));
}

TEST(TopP, IsAShareOfWhatTopKKept) {
  // Of 0.4 and 0.3, the first alone is 57%.
  const std::vector<float> logits = LogsOf({0.3, 0.4, 0.2, 0.1});
  EXPECT_THAT(Kept(logits, {.temperature = 1, .top_k = 2, .top_p = 0.5f}),
              ElementsAre(1));
  EXPECT_THAT(Kept(logits, {.temperature = 1, .top_p = 0.5f}),
              ElementsAre(0, 1));
}

TEST(MinP, KeepsWhatIsProbableEnough) {
  const std::vector<float> logits = LogsOf({0.05, 0.5, 0.2, 0.25});
  EXPECT_THAT(Kept(logits, {.temperature = 1, .min_p = 0.45f}),
              ElementsAre(1, 3));
  EXPECT_THAT(Kept(logits, {.temperature = 1, .min_p = 0.11f}),
              ElementsAre(1, 2, 3));
  EXPECT_THAT(Kept({0, 2, 2, 1}, {.temperature = 1, .min_p = 1}),
              ElementsAre(1, 2));
}

TEST(MinP, ComesAfterTheTemperature) {
  // At temperature 2 the odds 1 : 16 become 1 : 4.
  const std::vector<float> logits = LogsOf({1.0 / 17, 16.0 / 17});
  EXPECT_THAT(Kept(logits, {.temperature = 1, .min_p = 0.2f}), ElementsAre(1));
  EXPECT_THAT(Kept(logits, {.temperature = 2, .min_p = 0.2f}),
              ElementsAre(0, 1));
}

TEST(TypicalP, PrefersTheExpectedInformation) {
  // -ln p = 0.69, 1.90 and 1.61 (twice 0.2 and 0.15); entropy 1.21. Nearest
  // to it: 0.2 (0.40), 0.5 (0.52), 0.15 (0.69).
  const std::vector<float> logits = LogsOf({0.5, 0.15, 0.2, 0.15});
  EXPECT_THAT(Kept(logits, {.temperature = 1, .typical_p = 0.15f}),
              ElementsAre(2));
  EXPECT_THAT(Kept(logits, {.temperature = 1, .typical_p = 0.6f}),
              ElementsAre(0, 2));
  EXPECT_THAT(Kept(logits, {.temperature = 1, .typical_p = 0.8f}),
              ElementsAre(0, 1, 2));
}

TEST(TypicalP, OfEqualTokensKeepsTheLowerIds) {
  EXPECT_THAT(Kept({1, 1, 1, 1}, {.temperature = 1, .typical_p = 0.5f}),
              ElementsAre(0, 1));
}

TEST(TypicalP, ComesBeforeTopP) {
  // typical_p keeps 0.2 and 0.5 of the row above; 0.7 of them is 0.5 alone.
  const std::vector<float> logits = LogsOf({0.5, 0.15, 0.2, 0.15});
  EXPECT_THAT(
      Kept(logits, {.temperature = 1, .top_p = 0.7f, .typical_p = 0.6f}),
      ElementsAre(0));
}

TEST(TypicalP, StandsMaskedAndVanishingTokens) {
  EXPECT_THAT(Kept({-kInfinity, 0, -1e30f, -3e38f},
                   {.temperature = 1, .typical_p = 0.5f}),
              ElementsAre(1));
  EXPECT_THAT(Kept({-kInfinity, 0, -1e30f, -3e38f},
                   {.temperature = 1, .top_k = 3, .typical_p = 0.5f}),
              ElementsAre(1));
}

}  // namespace
}  // namespace nibble::kernels::reference
