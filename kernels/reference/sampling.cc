#include "kernels/reference/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/check.h"
#include "kernels/reference/exp.h"

namespace nibble::kernels::reference {
namespace {

constexpr float kRemoved = -std::numeric_limits<float>::infinity();

// Adjusted logits stay finite unless they are removed.
float Bounded(float logit) {
  constexpr float kGreatest = std::numeric_limits<float>::max();
  return std::clamp(logit, -kGreatest, kGreatest);
}

float Biased(float logit, float bias) {
  if (logit == kRemoved || bias == kRemoved) return kRemoved;
  return Bounded(logit + bias);
}

float Repeated(float logit, float penalty) {
  if (logit == kRemoved) return kRemoved;
  return Bounded(logit > 0 ? logit / penalty : logit * penalty);
}

TokenLogprob LogprobOf(std::span<const float> logits, int32_t id, float best,
                       double log_sum) {
  const double logit = logits[static_cast<size_t>(id)];
  return {.id = id,
          .logprob = static_cast<float>(logit - best - log_sum),
          .rank = RankOf(logits, id)};
}

}  // namespace

void Sampler::Sample(std::span<const float> logits, const SampleRow& row,
                     SampleResult* result) {
  NIBBLE_CHECK(row.params != nullptr);
  result->token = -1;
  result->finite = false;
  result->chosen = {};
  result->top.clear();
  const LogitScan raw = ScanLogits(logits);
  if (!raw.valid) return;
  if (row.forced_token >= 0) {
    result->token = row.forced_token;
  } else {
    const std::span<const float> adjusted = Adjust(logits, row);
    const LogitScan scan =
        adjusted.data() == logits.data() ? raw : ScanLogits(adjusted);
    if (!scan.valid) return;
    result->token = row.params->temperature < kGreedyTemperature
                        ? scan.best_id
                        : Draw(adjusted, scan.best, row);
  }
  result->finite = true;
  if (row.num_logprobs >= 0 || row.forced_token >= 0) {
    ReportLogprobs(logits, row, raw.best, result);
  }
}

void Sampler::ReportLogprobs(std::span<const float> logits,
                             const SampleRow& row, float best,
                             SampleResult* result) {
  NIBBLE_CHECK_LT(static_cast<size_t>(result->token), logits.size());
  const double log_sum = LogSumExp(logits, best);
  result->chosen = LogprobOf(logits, result->token, best, log_sum);
  if (row.num_logprobs <= 0) return;
  SelectBest(logits, row.num_logprobs, &top_);
  std::sort(top_.begin(), top_.end(), IsBefore);
  for (const Candidate& token : top_) {
    const double logit = token.logit;
    const auto rank = static_cast<int32_t>(result->top.size()) + 1;
    result->top.push_back(
        {.id = token.id,
         .logprob = static_cast<float>(logit - best - log_sum),
         .rank = rank});
  }
}

std::span<const float> Sampler::Adjust(std::span<const float> logits,
                                       const SampleRow& row) {
  const SamplingParams& params = *row.params;
  const bool penalised = params.repetition_penalty != 1.0f ||
                         params.presence_penalty != 0.0f ||
                         params.frequency_penalty != 0.0f;
  if (params.logit_bias.empty() && !penalised && row.banned.empty()) {
    return logits;
  }
  adjusted_.assign(logits.begin(), logits.end());
  for (const auto& [id, bias] : params.logit_bias) {
    NIBBLE_CHECK_LT(static_cast<size_t>(id), logits.size());
    float& logit = adjusted_[static_cast<size_t>(id)];
    logit = Biased(logit, bias);
  }
  if (penalised) ApplyPenalties(row);
  for (const int32_t id : row.banned) {
    NIBBLE_CHECK_LT(static_cast<size_t>(id), logits.size());
    adjusted_[static_cast<size_t>(id)] = kRemoved;
  }
  return adjusted_;
}

void Sampler::ApplyPenalties(const SampleRow& row) {
  const SamplingParams& params = *row.params;
  counts_.resize(adjusted_.size());
  const auto count_of = [this](int32_t id) -> int32_t& {
    NIBBLE_CHECK_LT(static_cast<size_t>(id), counts_.size());
    return counts_[static_cast<size_t>(id)];
  };
  if (params.repetition_penalty != 1.0f) {
    for (const auto& tokens : {row.prompt_tokens, row.generated_tokens}) {
      for (const int32_t id : tokens) {
        if (count_of(id)++ > 0) continue;
        float& logit = adjusted_[static_cast<size_t>(id)];
        logit = Repeated(logit, params.repetition_penalty);
      }
    }
    for (const auto& tokens : {row.prompt_tokens, row.generated_tokens}) {
      for (const int32_t id : tokens) count_of(id) = 0;
    }
  }
  for (const int32_t id : row.generated_tokens) ++count_of(id);
  for (const int32_t id : row.generated_tokens) {
    if (count_of(id) == 0) continue;
    const float penalty =
        params.presence_penalty +
        static_cast<float>(count_of(id)) * params.frequency_penalty;
    float& logit = adjusted_[static_cast<size_t>(id)];
    logit = Biased(logit, -penalty);
    count_of(id) = 0;
  }
}

int32_t Sampler::Draw(std::span<const float> logits, float best,
                      const SampleRow& row) {
  const SamplingParams& params = *row.params;
  const double u = UniformAt(params.seed, row.position);
  const auto vocab = static_cast<int64_t>(logits.size());
  const bool whole = params.top_k <= 0 || params.top_k >= vocab;
  if (whole && params.typical_p >= 1 && params.top_p >= 1 &&
      params.min_p <= 0) {
    table_.Compute(logits, best, params.temperature);
    return table_.Find(u * table_.total());
  }
  if (whole) {
    CollectCandidates(logits, best, params);
  } else {
    CollectTopK(logits, best, params);
  }
  if (params.typical_p < 1) kept_.KeepTypical(params.typical_p);
  if (params.top_p < 1) kept_.KeepTopP(params.top_p);
  if (params.min_p > 0) kept_.KeepMinP(params.min_p);
  return kept_.Draw(u);
}

void Sampler::CollectTopK(std::span<const float> logits, float best,
                          const SamplingParams& params) {
  std::vector<Candidate>& tokens = kept_.Reset();
  SelectBest(logits, params.top_k, &tokens);
  std::erase_if(tokens,
                [](const Candidate& token) { return token.logit == kRemoved; });
  std::sort(tokens.begin(), tokens.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  for (Candidate& token : tokens) {
    token.scaled = (token.logit - best) / params.temperature;
    token.weight = ExpNonPositive(token.scaled);
  }
  kept_.SumTotal();
}

void Sampler::CollectCandidates(std::span<const float> logits, float best,
                                const SamplingParams& params) {
  table_.Compute(logits, best, params.temperature);
  // Tokens lighter than this are certain to be cut later. All tokens lighter
  // than (1 - top_p) * total / V together weigh less than what top_p may
  // leave out (half of it: a margin for rounding). The greatest weight is 1,
  // and of what min_p cuts nothing comes before what it keeps. typical_p may
  // keep anything.
  double bound = 0;
  if (params.typical_p >= 1) {
    const double spare = 1.0 - static_cast<double>(params.top_p);
    bound = std::max(
        0.5 * spare * table_.total() / static_cast<double>(logits.size()),
        static_cast<double>(params.min_p));
  }
  std::vector<Candidate>& tokens = kept_.Reset();
  const std::span<const float> weights = table_.weights();
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0 || static_cast<double>(weights[i]) < bound) continue;
    tokens.push_back({.id = static_cast<int32_t>(i),
                      .logit = logits[i],
                      .scaled = (logits[i] - best) / params.temperature,
                      .weight = weights[i]});
  }
  kept_.SetTotal(table_.total());
}

}  // namespace nibble::kernels::reference
