#include "tools/perplexity/statistics.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "nlohmann/json.hpp"

namespace nibble::tools {
namespace {

// Tokens the base model holds for less probable than exp(-16) add nothing:
// the base file clips there.
constexpr float kMinLogProb = -16.0f;

// KL(base || model) of one position, nats.
double KlDivergence(std::span<const float> logits, const LogSoftmax& softmax,
                    const KlBaseRow& base) {
  double sum = 0;
  for (size_t id = 0; id < logits.size(); ++id) {
    const float log_base = base.LogProb(id);
    if (log_base <= kMinLogProb) continue;
    sum += std::exp(log_base) * (log_base - (logits[id] - softmax.log_sum));
  }
  return sum;
}

nlohmann::json ToJson(const Estimate& estimate) {
  return {{"value", estimate.value}, {"error", estimate.error}};
}

}  // namespace

Estimate MomentSums::Mean() const {
  if (count == 0) return {};
  const double n = static_cast<double>(count);
  const double mean = sum / n;
  const double variance = sum_squares / n - mean * mean;
  const bool has_error = count > 1 && variance > 0;
  return {mean, has_error ? std::sqrt(variance / (n - 1)) : 0};
}

Estimate Exp(const Estimate& log) {
  const double value = std::exp(log.value);
  return {value, value * log.error};
}

void PerplexityStatistics::Add(std::span<const float> logits,
                               const LogSoftmax& softmax, int32_t target) {
  nll_.Add(softmax.log_sum - logits[target]);
}

void KlStatistics::Add(std::span<const float> logits, const LogSoftmax& softmax,
                       int32_t target, const KlBaseRow& base) {
  NIBBLE_DCHECK(base.codes.size() == logits.size());
  const double kl = KlDivergence(logits, softmax, base);
  kl_.Add(kl);
  kl_values_.push_back(kl);
  const double nll = softmax.log_sum - logits[target];
  const double nll_base = -base.LogProb(target);
  nll_.Add(nll);
  nll_base_.Add(nll_base);
  sum_nll_products_ += nll * nll_base;
  const auto base_top = std::max_element(base.codes.begin(), base.codes.end());
  same_top_ += base_top - base.codes.begin() == softmax.top ? 1 : 0;
}

double KlStatistics::KlPercentile(double fraction) const {
  NIBBLE_CHECK(!kl_values_.empty() && fraction >= 0 && fraction <= 1);
  std::vector<double> sorted = kl_values_;
  std::sort(sorted.begin(), sorted.end());
  const double place = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double rest = place - static_cast<double>(below);
  return (1 - rest) * sorted[below] + rest * sorted[above];
}

Estimate KlStatistics::SameTop() const {
  if (count() == 0) return {};
  const double n = static_cast<double>(count());
  const double share = static_cast<double>(same_top_) / n;
  return {share, count() > 1 ? std::sqrt(share * (1 - share) / (n - 1)) : 0};
}

Estimate KlStatistics::PerplexityRatio() const {
  const Estimate model = nll_.Mean();
  const Estimate base = nll_base_.Mean();
  double variance = 0;
  if (count() > 1) {
    const double n = static_cast<double>(count());
    const double covariance =
        (sum_nll_products_ / n - model.value * base.value) / (n - 1);
    // Both see the same tokens, so their errors mostly cancel.
    variance =
        model.error * model.error + base.error * base.error - 2 * covariance;
  }
  return Exp({model.value - base.value, std::sqrt(std::max(variance, 0.0))});
}

std::string ToText(const PerplexityStatistics& perplexity,
                   const KlStatistics* kl) {
  const Estimate ppl = perplexity.Perplexity();
  std::string text;
  if (kl != nullptr) {
    const Estimate base = kl->BasePerplexity();
    const Estimate ratio = kl->PerplexityRatio();
    const Estimate mean = kl->MeanKl();
    const Estimate top = kl->SameTop();
    absl::StrAppendFormat(&text, "base perplexity  %.4f +- %.4f\n", base.value,
                          base.error);
    absl::StrAppendFormat(&text, "perplexity ratio %.6f +- %.6f\n", ratio.value,
                          ratio.error);
    absl::StrAppendFormat(&text, "mean KL          %.6f +- %.6f\n", mean.value,
                          mean.error);
    absl::StrAppendFormat(&text, "99%% KL           %.6f\n",
                          kl->KlPercentile(0.99));
    absl::StrAppendFormat(&text, "maximum KL       %.6f\n",
                          kl->KlPercentile(1));
    absl::StrAppendFormat(&text, "same top token   %.3f%% +- %.3f%%\n",
                          100 * top.value, 100 * top.error);
  }
  absl::StrAppendFormat(&text, "PPL = %.4f +- %.5f (%d tokens)\n", ppl.value,
                        ppl.error, perplexity.count());
  return text;
}

nlohmann::json ToJson(const PerplexityStatistics& perplexity,
                      const KlStatistics* kl) {
  nlohmann::json json = {{"tokens", perplexity.count()},
                         {"perplexity", ToJson(perplexity.Perplexity())}};
  if (kl != nullptr) {
    json["base_perplexity"] = ToJson(kl->BasePerplexity());
    json["perplexity_ratio"] = ToJson(kl->PerplexityRatio());
    json["mean_kl"] = ToJson(kl->MeanKl());
    json["kl_99_percent"] = kl->KlPercentile(0.99);
    json["maximum_kl"] = kl->KlPercentile(1);
    json["same_top"] = ToJson(kl->SameTop());
  }
  return json;
}

}  // namespace nibble::tools
