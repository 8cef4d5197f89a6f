// What a run of nibble-perplexity adds up, and how it reports it: the
// estimators of llama-perplexity, so that the numbers compare.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nlohmann/json_fwd.hpp"
#include "tools/perplexity/kl_base_file.h"
#include "tools/perplexity/log_softmax.h"

namespace nibble::tools {

// A value and its standard error.
struct Estimate {
  double value = 0;
  double error = 0;
};

// Sums for the mean of a sample and of its square. Plain value.
struct MomentSums {
  int64_t count = 0;
  double sum = 0;
  double sum_squares = 0;

  void Add(double x) {
    ++count;
    sum += x;
    sum_squares += x * x;
  }
  // Zero without a sample; an error needs two.
  Estimate Mean() const;
};

// exp of an estimated mean, the error carried along.
Estimate Exp(const Estimate& log);

// Perplexity of one model over the scored positions. Plain value.
class PerplexityStatistics final {
 public:
  // Books the token that followed a position with these logits.
  void Add(std::span<const float> logits, const LogSoftmax& softmax,
           int32_t target);

  int64_t count() const { return nll_.count; }
  Estimate Perplexity() const { return Exp(nll_.Mean()); }
  const MomentSums& nll() const { return nll_; }

 private:
  MomentSums nll_;  // negative log-likelihood of a token, nats
};

// How far the model is from the base model. Plain value.
class KlStatistics final {
 public:
  void Add(std::span<const float> logits, const LogSoftmax& softmax,
           int32_t target, const KlBaseRow& base);

  int64_t count() const { return kl_.count; }
  Estimate MeanKl() const { return kl_.Mean(); }
  // The KL divergence that `fraction` of the positions do not exceed,
  // interpolated; needs a sample.
  double KlPercentile(double fraction) const;
  // The share of positions where both have the same most probable token.
  Estimate SameTop() const;
  Estimate BasePerplexity() const { return Exp(nll_base_.Mean()); }
  // perplexity / base perplexity, over the same positions.
  Estimate PerplexityRatio() const;

 private:
  MomentSums kl_;
  MomentSums nll_;
  MomentSums nll_base_;
  double sum_nll_products_ = 0;
  int64_t same_top_ = 0;
  std::vector<double> kl_values_;  // [count]
};

// The report of a run; `kl` may be null.
std::string ToText(const PerplexityStatistics& perplexity,
                   const KlStatistics* kl);
nlohmann::json ToJson(const PerplexityStatistics& perplexity,
                      const KlStatistics* kl);

}  // namespace nibble::tools
