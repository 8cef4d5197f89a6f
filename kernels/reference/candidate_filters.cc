#include "kernels/reference/candidate_filters.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace nibble::kernels::reference {
namespace {

double Sum(std::vector<Candidate>::const_iterator begin,
           std::vector<Candidate>::const_iterator end) {
  double sum = 0;
  for (; begin != end; ++begin) sum += static_cast<double>(begin->weight);
  return sum;
}

// Keeps the shortest beginning, in the order `before`, whose share of `total`
// is at least `share`; one token at least. Halves the range in which the end
// must lie, so that only the tokens around it are ever sorted.
template <typename Before>
void KeepShare(float share, double total, Before before,
               std::vector<Candidate>* kept) {
  constexpr int64_t kSortBelow = 32;
  const auto reached = [&](double mass) {
    return static_cast<float>(mass / total) >= share;
  };
  double mass = 0;  // of [begin, low)
  auto low = kept->begin();
  auto high = kept->end();
  while (high - low > kSortBelow) {
    const auto middle = low + (high - low) / 2;
    std::nth_element(low, middle, high, before);
    const double more = Sum(low, middle);
    if (reached(mass + more)) {
      high = middle;
    } else {
      mass += more;
      low = middle;
    }
  }
  std::sort(low, high, before);
  while (low != high) {
    mass += static_cast<double>(low->weight);
    ++low;
    if (reached(mass)) break;
  }
  kept->erase(low, kept->end());
}

}  // namespace

double TotalWeight(const std::vector<Candidate>& kept) {
  return Sum(kept.begin(), kept.end());
}

void KeepTypical(float typical_p, double total, std::vector<Candidate>* kept) {
  // -ln p = ln(total) - scaled and the entropy is the mean of -ln p, so the
  // distance between them is that of `scaled` from its mean.
  double mean = 0;
  for (const Candidate& token : *kept) {
    if (token.weight == 0) continue;
    mean += static_cast<double>(token.weight) / total *
            static_cast<double>(token.scaled);
  }
  for (Candidate& token : *kept) {
    token.distance = std::fabs(static_cast<double>(token.scaled) - mean);
  }
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.distance != b.distance ? a.distance < b.distance : a.id < b.id;
  };
  KeepShare(typical_p, total, before, kept);
}

void KeepTopP(float top_p, double total, std::vector<Candidate>* kept) {
  KeepShare(top_p, total, IsBefore, kept);
}

void KeepMinP(float min_p, std::vector<Candidate>* kept) {
  float greatest = 0;
  for (const Candidate& token : *kept) {
    greatest = std::max(greatest, token.weight);
  }
  std::erase_if(*kept, [bound = min_p * greatest](const Candidate& token) {
    return token.weight < bound;
  });
}

int32_t DrawById(double u, std::vector<Candidate>* kept) {
  NIBBLE_CHECK(!kept->empty());
  std::sort(kept->begin(), kept->end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  const double target = u * TotalWeight(*kept);
  double cumulative = 0;
  int32_t last = kept->front().id;
  for (const Candidate& token : *kept) {
    if (token.weight == 0) continue;
    cumulative += static_cast<double>(token.weight);
    last = token.id;
    if (cumulative > target) break;
  }
  return last;
}

}  // namespace nibble::kernels::reference
