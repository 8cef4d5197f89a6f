// Passes over one row of logits [V], for sampling. Where logits are compared,
// "before" means greater, or equal with a lower id.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace nibble::kernels::reference {

// What one pass over raw logits tells.
struct LogitScan {
  bool valid = false;   // no NaN, no +infinity, not all -infinity
  int32_t best_id = 0;  // of the greatest logit, the lowest id among equals
  float best = 0;       // that logit
};

LogitScan ScanLogits(std::span<const float> logits);

// The number of tokens that stand before `id`, plus 1.
int32_t RankOf(std::span<const float> logits, int32_t id);

// A token that may be chosen.
struct Candidate {
  int32_t id = 0;
  float logit = 0;
  float scaled = 0;     // (logit - greatest logit) / temperature, <= 0
  float weight = 0;     // e^scaled
  double distance = 0;  // |information - entropy|, for typical_p
};

inline bool IsBefore(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// Sets *out to the first `count` tokens (all, if there are fewer), in no
// particular order; id and logit only. O(V + count log count) or so.
void SelectBest(std::span<const float> logits, int64_t count,
                std::vector<Candidate>* out);

// The weights e^((logit - best) / temperature) of a whole vocabulary and
// their sums. Owned by a Sampler; keeps its capacity from row to row.
class WeightTable final {
 public:
  // `best` is the greatest logit, temperature > 0.
  void Compute(std::span<const float> logits, float best, float temperature);

  double total() const { return total_; }
  std::span<const float> weights() const { return weights_; }

  // The first token whose cumulative weight exceeds `target`; the last one
  // with a weight, should rounding leave none.
  int32_t Find(double target) const;

 private:
  // Tokens whose weights are summed before the running sum is touched.
  static constexpr int64_t kBlock = 256;

  std::vector<float> weights_;      // [V]
  std::vector<double> block_sums_;  // [ceil(V / kBlock)]
  double total_ = 0;
};

// ln(sum of e^(logit - best)): with `best`, the softmax's denominator.
double LogSumExp(std::span<const float> logits, float best);

}  // namespace nibble::kernels::reference
