// The sampler against docs/sampling.md written down a second time, naively and
// in FP64, on random rows; and its draws against exact probabilities.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "kernels/reference/sampling.h"
#include "tests/support/random.h"

namespace nibble::kernels::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Steps 4 to 6 in FP32, as the page wants them.
std::vector<float> NaiveAdjusted(std::vector<float> logits,
                                 const SampleRow& row) {
  const SamplingParams& params = *row.params;
  for (const auto& [id, bias] : params.logit_bias) logits[id] += bias;
  std::set<int32_t> seen(row.prompt_tokens.begin(), row.prompt_tokens.end());
  seen.insert(row.generated_tokens.begin(), row.generated_tokens.end());
  for (const int32_t id : seen) {
    logits[id] = logits[id] > 0 ? logits[id] / params.repetition_penalty
                                : logits[id] * params.repetition_penalty;
  }
  for (const int32_t id : std::set<int32_t>(row.generated_tokens.begin(),
                                            row.generated_tokens.end())) {
    const auto count = static_cast<float>(std::count(
        row.generated_tokens.begin(), row.generated_tokens.end(), id));
    logits[id] -= params.presence_penalty + count * params.frequency_penalty;
  }
  for (const int32_t id : row.banned) {
    logits[id] = -std::numeric_limits<float>::infinity();
  }
  return logits;
}

// A distribution over the ids that are still kept.
struct Distribution {
  std::vector<int32_t> ids;
  std::vector<double> p;  // by id; what is not kept is 0

  void Normalise() {
    double sum = 0;
    for (const int32_t id : ids) sum += p[id];
    std::vector<double> normal(p.size(), 0.0);
    for (const int32_t id : ids) normal[id] = p[id] / sum;
    p = normal;
  }

  // Keeps the shortest beginning by ascending key whose mass reaches share.
  void KeepShare(const std::vector<double>& key, double share) {
    std::sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
      return key[a] != key[b] ? key[a] < key[b] : a < b;
    });
    double mass = 0;
    size_t count = 0;
    while (count < ids.size() && mass < share) mass += p[ids[count++]];
    ids.resize(std::max<size_t>(count, 1));
    Normalise();
  }
};

// How far bounds are moved to see whether a result lies within rounding.
struct Nudge {
  double u = 0;      // added
  double share = 0;  // added to top_p and typical_p
  double min_p = 1;  // multiplied
};

// Step 9: all tokens that can be drawn.
Distribution NaiveSoftmax(const std::vector<float>& logits,
                          double temperature) {
  const double greatest = *std::max_element(logits.begin(), logits.end());
  Distribution all;
  for (size_t i = 0; i < logits.size(); ++i) {
    all.p.push_back(
        std::exp((static_cast<double>(logits[i]) - greatest) / temperature));
    if (all.p[i] > 0) all.ids.push_back(static_cast<int32_t>(i));
  }
  all.Normalise();
  return all;
}

// Step 11's key.
std::vector<double> DistanceFromEntropy(const Distribution& kept) {
  double entropy = 0;
  for (const int32_t id : kept.ids) {
    entropy -= kept.p[id] * std::log(kept.p[id]);
  }
  std::vector<double> distance(kept.p.size());
  for (const int32_t id : kept.ids) {
    distance[id] = std::fabs(-std::log(kept.p[id]) - entropy);
  }
  return distance;
}

// Steps 10 to 13.
void NaiveFilter(const std::vector<float>& logits, const SamplingParams& params,
                 const Nudge& nudge, Distribution* kept) {
  std::vector<double> by_logit;
  for (const float logit : logits) by_logit.push_back(-logit);
  if (params.top_k > 0) {
    std::stable_sort(
        kept->ids.begin(), kept->ids.end(),
        [&](int32_t a, int32_t b) { return by_logit[a] < by_logit[b]; });
    kept->ids.resize(
        std::min(kept->ids.size(), static_cast<size_t>(params.top_k)));
    kept->Normalise();
  }
  if (params.typical_p < 1) {
    kept->KeepShare(DistanceFromEntropy(*kept), params.typical_p + nudge.share);
  }
  if (params.top_p < 1) kept->KeepShare(by_logit, params.top_p + nudge.share);
  const double bound = *std::max_element(kept->p.begin(), kept->p.end()) *
                       static_cast<double>(params.min_p) * nudge.min_p;
  std::erase_if(kept->ids, [&](int32_t id) { return kept->p[id] < bound; });
  kept->Normalise();
}

int32_t NaiveSample(const std::vector<float>& raw, const SampleRow& row,
                    const Nudge& nudge) {
  const SamplingParams& params = *row.params;
  const std::vector<float> logits = NaiveAdjusted(raw, row);
  const auto greatest = std::max_element(logits.begin(), logits.end());
  if (*greatest == -kInfinity) return -1;
  if (params.temperature < kGreedyTemperature) {
    return static_cast<int32_t>(greatest - logits.begin());
  }
  Distribution kept = NaiveSoftmax(logits, params.temperature);
  NaiveFilter(logits, params, nudge, &kept);
  std::sort(kept.ids.begin(), kept.ids.end());
  const double target = UniformAt(params.seed, row.position) + nudge.u;
  double cumulative = 0;
  for (const int32_t id : kept.ids) {
    cumulative += kept.p[id];
    if (cumulative > target) return id;
  }
  return kept.ids.back();
}

bool IsWithinRounding(const std::vector<float>& logits, const SampleRow& row,
                      int32_t token) {
  for (const double u : {-1e-6, 0.0, 1e-6}) {
    for (const double share : {-1e-6, 0.0, 1e-6}) {
      for (const double min_p : {1 - 1e-5, 1.0, 1 + 1e-5}) {
        const Nudge nudge = {.u = u, .share = share, .min_p = min_p};
        if (NaiveSample(logits, row, nudge) == token) return true;
      }
    }
  }
  return false;
}

// A row with random parameters, each off half of the time.
struct RandomRow {
  std::vector<float> logits;
  std::vector<int32_t> prompt;
  std::vector<int32_t> generated;
  std::vector<int32_t> banned;
  SamplingParams params;
  SampleRow row;

  explicit RandomRow(test::Random& random) {
    constexpr int kSizes[] = {1, 2, 3, 17, 100, 300, 1000};
    const int64_t size = kSizes[random.Int(0, 6)];
    logits = random.Normals(size, random.Uniform(0.5f, 6));
    const auto maybe = [&] { return random.Int(0, 1) == 0; };
    const auto id = [&] {
      return static_cast<int32_t>(random.Int(0, size - 1));
    };
    if (random.Int(0, 9) == 0) logits[id()] = -INFINITY;
    params.temperature = maybe() ? 1 : random.Uniform(0.1f, 3);
    if (maybe()) params.top_k = static_cast<int32_t>(random.Int(1, 60));
    if (maybe()) params.top_p = random.Uniform(0.01f, 0.9999f);
    if (maybe()) params.min_p = random.Uniform(0, 0.5f);
    if (maybe()) params.typical_p = random.Uniform(0.01f, 0.9999f);
    if (maybe()) params.repetition_penalty = random.Uniform(0.5f, 2);
    if (maybe()) params.presence_penalty = random.Uniform(-2, 2);
    if (maybe()) params.frequency_penalty = random.Uniform(-2, 2);
    if (maybe()) params.logit_bias = {{id(), random.Uniform(-9, 9)}};
    params.seed = random.Bits();
    for (int64_t i = random.Int(0, 9); i > 0; --i) prompt.push_back(id());
    for (int64_t i = random.Int(0, 9); i > 0; --i) generated.push_back(id());
    if (maybe()) banned = {id()};
    row = {.params = &params,
           .prompt_tokens = prompt,
           .generated_tokens = generated,
           .position = random.Bits() % 1000,
           .banned = banned};
  }
  RandomRow(const RandomRow&) = delete;
  RandomRow& operator=(const RandomRow&) = delete;
};

TEST(SamplerProperty, AgreesWithTheNaiveSampler) {
  constexpr int kRows = 20000;
  test::Random random(2024);
  Sampler sampler;
  SampleResult result;
  int within_rounding = 0;
  for (int i = 0; i < kRows; ++i) {
    const RandomRow input(random);
    sampler.Sample(input.logits, input.row, &result);
    const int32_t expected = NaiveSample(input.logits, input.row, {});
    ASSERT_EQ(result.finite, expected >= 0) << "row " << i;
    if (result.token == expected) continue;
    ++within_rounding;
    ASSERT_TRUE(IsWithinRounding(input.logits, input.row, result.token))
        << "row " << i << ": " << result.token << " is not " << expected;
  }
  EXPECT_LE(within_rounding, kRows / 1000);
}

// Draws 20,000 times and compares with p by a chi-square test.
void ExpectFrequencies(const std::vector<float>& logits,
                       const SamplingParams& params,
                       const std::vector<double>& p) {
  constexpr int kDraws = 20000;
  Sampler sampler;
  SampleResult result;
  std::vector<int> counts(logits.size());
  for (uint64_t position = 0; position < kDraws; ++position) {
    sampler.Sample(logits, {.params = &params, .position = position}, &result);
    ++counts[result.token];
  }
  double chi_square = 0;
  int cells = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) {
      EXPECT_EQ(counts[i], 0) << i;
      continue;
    }
    const double expected = p[i] * kDraws;
    ASSERT_GE(expected, 5);
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
    ++cells;
  }
  // Wilson and Hilferty's normal approximation, at 3.7 standard deviations
  // (once in 10,000; the seeds are fixed).
  const double freedom = cells - 1;
  const double spread = 2 / (9 * freedom);
  EXPECT_LT(chi_square,
            freedom * std::pow(1 - spread + 3.7 * std::sqrt(spread), 3));
}

TEST(SamplerStatistics, DrawsAsOftenAsTheProbabilitiesSay) {
  test::Random random(77);
  const std::vector<float> logits = random.Normals(50, 0.8f);
  for (const float temperature : {0.7f, 1.0f, 1.5f}) {
    std::vector<double> p;
    for (const float logit : logits) p.push_back(std::exp(logit / temperature));
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& value : p) value /= sum;
    ExpectFrequencies(logits, {.temperature = temperature, .seed = 123}, p);
  }
}

TEST(SamplerStatistics, DrawsFromWhatTheFiltersKeep) {
  // The five most probable of eight, renormalised; min_p cuts the fifth.
  const std::vector<double> p = {.04, .2, .1, .02, .3, .04, .14, .16};
  std::vector<float> logits;
  for (const double value : p) {
    logits.push_back(static_cast<float>(std::log(value)));
  }
  ExpectFrequencies(logits,
                    {.temperature = 1, .top_k = 5, .min_p = 0.4f, .seed = 9},
                    {0, .2 / .8, 0, 0, .3 / .8, 0, .14 / .8, .16 / .8});
}

}  // namespace
}  // namespace nibble::kernels::reference
