#include "kernels/reference/vocab_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/support/random.h"

namespace nibble::kernels::reference {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Sizes around the lanes and blocks of the code, and a real vocabulary.
const std::vector<int64_t> kSizes = {1,   2,   15,  16,   17,   255,  256,  257,
                                     511, 512, 513, 1000, 1024, 1025, 49152};

// Logits with many equal values.
std::vector<float> CoarseLogits(int64_t size, test::Random& random) {
  std::vector<float> logits = random.Normals(size, 4);
  for (float& logit : logits) logit = std::round(logit);
  return logits;
}

std::vector<int32_t> IdsInOrder(const std::vector<float>& logits) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  return ids;
}

TEST(ScanLogits, FindsTheFirstOfTheGreatest) {
  test::Random random(1);
  for (const int64_t size : kSizes) {
    const std::vector<float> logits = CoarseLogits(size, random);
    const LogitScan scan = ScanLogits(logits);
    ASSERT_TRUE(scan.valid);
    EXPECT_EQ(scan.best_id, IdsInOrder(logits)[0]) << size;
    EXPECT_EQ(scan.best, logits[scan.best_id]);
  }
}

TEST(ScanLogits, SeesOneBadValueAnywhere) {
  test::Random random(2);
  for (const int64_t size : kSizes) {
    const std::vector<float> logits = random.Normals(size);
    const int64_t step = std::max<int64_t>(1, size / 500);
    for (int64_t at = 0; at < size; at += step) {
      for (const float bad : {kNan, -kNan, kInfinity}) {
        std::vector<float> spoiled = logits;
        spoiled[at] = bad;
        ASSERT_FALSE(ScanLogits(spoiled).valid) << size << " at " << at;
      }
      if (size > 2000) continue;
      std::vector<float> only(size, -kInfinity);
      only[at] = -std::numeric_limits<float>::max();
      ASSERT_TRUE(ScanLogits(only).valid);
      ASSERT_EQ(ScanLogits(only).best_id, at);
    }
    EXPECT_FALSE(ScanLogits(std::vector<float>(size, -kInfinity)).valid);
  }
}

TEST(RankOf, CountsWhatStandsBefore) {
  test::Random random(3);
  for (const int64_t size : {1, 17, 300}) {
    const std::vector<float> logits = CoarseLogits(size, random);
    const std::vector<int32_t> ids = IdsInOrder(logits);
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(RankOf(logits, ids[i]), static_cast<int32_t>(i) + 1);
    }
  }
}

TEST(SelectBest, TakesTheFirstInOrder) {
  test::Random random(4);
  for (const int64_t size : kSizes) {
    std::vector<float> logits = CoarseLogits(size, random);
    if (size > 3) logits[size / 2] = -kInfinity;
    std::vector<int32_t> expected = IdsInOrder(logits);
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{20},
                                int64_t{100}, size - 1, size, size + 7}) {
      std::vector<Candidate> best;
      SelectBest(logits, count, &best);
      std::sort(best.begin(), best.end(), IsBefore);
      ASSERT_EQ(static_cast<int64_t>(best.size()), std::min(count, size));
      for (size_t i = 0; i < best.size(); ++i) {
        ASSERT_EQ(best[i].id, expected[i]) << size << " " << count;
        ASSERT_EQ(best[i].logit, logits[expected[i]]);
      }
    }
  }
}

TEST(WeightTable, FindsWhereTheCumulativeWeightPasses) {
  test::Random random(5);
  WeightTable table;  // one, as a Sampler keeps one for rows of any size
  for (const int64_t size : kSizes) {
    std::vector<float> logits = random.Normals(size, 3);
    logits[size - 1] = -kInfinity;
    logits[0] = 1;
    const float best = *std::max_element(logits.begin(), logits.end());
    table.Compute(logits, best, 0.7f);
    double total = 0;
    for (const float weight : table.weights()) total += weight;
    ASSERT_NEAR(table.total(), total, 1e-12 * total);
    for (int trial = 0; trial < 100; ++trial) {
      const double target = random.Uniform() * table.total();
      const int32_t id = table.Find(target);
      double below = 0;
      for (int32_t i = 0; i < id; ++i) below += table.weights()[i];
      ASSERT_LE(below, target + 1e-12 * total);
      ASSERT_GT(below + table.weights()[id], target - 1e-12 * total);
      ASSERT_GT(table.weights()[id], 0);
    }
  }
}

TEST(WeightTable, FallsBackToTheLastTokenWithAWeight) {
  WeightTable table;
  std::vector<float> logits(1000, -kInfinity);
  logits[3] = 0;
  logits[400] = 0;
  table.Compute(logits, 0, 1);
  EXPECT_EQ(table.total(), 2);
  EXPECT_EQ(table.Find(0), 3);
  EXPECT_EQ(table.Find(1), 400);
  EXPECT_EQ(table.Find(2), 400);
}

TEST(LogSumExp, IsTheSoftmaxDenominator) {
  test::Random random(6);
  for (const int64_t size : kSizes) {
    const std::vector<float> logits = random.Normals(size, 5);
    const float best = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) {
      sum += std::exp(static_cast<double>(logit) - best);
    }
    EXPECT_NEAR(LogSumExp(logits, best), std::log(sum), 1e-6);
  }
}

}  // namespace
}  // namespace nibble::kernels::reference
