#include "kernels/reference/kept_tokens.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace nibble::kernels::reference {
namespace {

template <typename Iterator>
double WeightOf(Iterator begin, Iterator end) {
  double sum = 0;
  for (; begin != end; ++begin) sum += static_cast<double>(begin->weight);
  return sum;
}

}  // namespace

std::vector<Candidate>& KeptTokens::Reset() {
  tokens_.clear();
  return tokens_;
}

void KeptTokens::SumTotal() {
  total_ = WeightOf(tokens_.begin(), tokens_.end());
}

// Keeps the shortest beginning, in the order `before`, whose share of the
// total is at least `share`; one token at least. Halves the range in which
// that beginning ends, so that only the tokens around its end are sorted.
template <typename Before>
void KeptTokens::KeepShare(float share, Before before) {
  constexpr int64_t kSortBelow = 32;
  NIBBLE_CHECK(!tokens_.empty());
  const auto reached = [&](double mass) {
    return static_cast<float>(mass / total_) >= share;
  };
  order_.assign(tokens_.begin(), tokens_.end());
  double mass = 0;  // of what stands before `low`
  auto low = order_.begin();
  auto high = order_.end();
  while (high - low > kSortBelow) {
    const auto middle = low + (high - low) / 2;
    std::nth_element(low, middle, high, before);
    const double more = WeightOf(low, middle);
    if (reached(mass + more)) {
      high = middle;
    } else {
      mass += more;
      low = middle;
    }
  }
  std::sort(low, high, before);
  auto last = low;
  for (; last + 1 != high; ++last) {
    mass += static_cast<double>(last->weight);
    if (reached(mass)) break;
  }
  std::erase_if(tokens_,
                [&](const Candidate& token) { return before(*last, token); });
  SumTotal();
}

void KeptTokens::KeepTypical(float typical_p) {
  // -ln p = ln(total) - scaled and the entropy is the mean of -ln p, so the
  // distance between them is that of `scaled` from its mean.
  double mean = 0;
  for (const Candidate& token : tokens_) {
    if (token.weight == 0) continue;
    mean += static_cast<double>(token.weight) / total_ *
            static_cast<double>(token.scaled);
  }
  for (Candidate& token : tokens_) {
    token.distance = std::fabs(static_cast<double>(token.scaled) - mean);
  }
  KeepShare(typical_p, [](const Candidate& a, const Candidate& b) {
    return a.distance != b.distance ? a.distance < b.distance : a.id < b.id;
  });
}

void KeptTokens::KeepTopP(float top_p) {
  KeepShare(top_p, [](const Candidate& a, const Candidate& b) {
    return IsBefore(a, b);
  });
}

void KeptTokens::KeepMinP(float min_p) {
  float greatest = 0;
  for (const Candidate& token : tokens_) {
    greatest = std::max(greatest, token.weight);
  }
  std::erase_if(tokens_, [bound = min_p * greatest](const Candidate& token) {
    return token.weight < bound;
  });
  SumTotal();
}

int32_t KeptTokens::Draw(double u) const {
  NIBBLE_CHECK(!tokens_.empty());
  const double target = u * total_;
  double cumulative = 0;
  int32_t last = tokens_.front().id;  // should rounding leave none
  for (const Candidate& token : tokens_) {
    if (token.weight == 0) continue;
    cumulative += static_cast<double>(token.weight);
    last = token.id;
    if (cumulative > target) break;
  }
  return last;
}

}  // namespace nibble::kernels::reference
