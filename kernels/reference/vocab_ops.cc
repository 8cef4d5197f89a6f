// The inner loops work on kLanes independent values, which a compiler can
// vectorise without being allowed to reorder floating-point operations.
#include "kernels/reference/vocab_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/check.h"
#include "kernels/reference/exp.h"

namespace nibble::kernels::reference {
namespace {

// So many that GCC vectorises the loop over them instead of unrolling it.
constexpr int kLanes = 32;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The greatest of a block, and whether each value is below +infinity (a NaN
// is not).
struct BlockScan {
  float best;
  bool valid;
};

BlockScan ScanBlock(std::span<const float> block) {
  std::array<float, kLanes> best;
  std::array<int32_t, kLanes> bad;
  best.fill(-kInfinity);
  bad.fill(0);
  size_t begin = 0;
  for (; begin + kLanes <= block.size(); begin += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float value = block[begin + lane];
      best[lane] = value > best[lane] ? value : best[lane];
      bad[lane] |= value < kInfinity ? 0 : 1;
    }
  }
  for (int lane = 0; begin + lane < block.size(); ++lane) {
    const float value = block[begin + lane];
    best[lane] = value > best[lane] ? value : best[lane];
    bad[lane] |= value < kInfinity ? 0 : 1;
  }
  BlockScan result{-kInfinity, true};
  for (int lane = 0; lane < kLanes; ++lane) {
    result.best = std::max(result.best, best[lane]);
    result.valid = result.valid && bad[lane] == 0;
  }
  return result;
}

// The sum of a block: one FP64 partial sum a lane, then the lanes in order.
double SumBlock(std::span<const float> block) {
  std::array<double, kLanes> sums{};
  size_t begin = 0;
  for (; begin + kLanes <= block.size(); begin += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      sums[lane] += static_cast<double>(block[begin + lane]);
    }
  }
  for (int lane = 0; begin + lane < block.size(); ++lane) {
    sums[lane] += static_cast<double>(block[begin + lane]);
  }
  double sum = 0;
  for (const double lane : sums) sum += lane;
  return sum;
}

void ExpBlock(std::span<const float> logits, float best, float temperature,
              float* weights) {
  for (size_t i = 0; i < logits.size(); ++i) {
    weights[i] = ExpNonPositive((logits[i] - best) / temperature);
  }
}

}  // namespace

LogitScan ScanLogits(std::span<const float> logits) {
  constexpr size_t kBlock = 512;
  NIBBLE_CHECK(!logits.empty());
  LogitScan scan;
  scan.best = -kInfinity;
  size_t best_begin = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const auto block =
        logits.subspan(begin, std::min(kBlock, logits.size() - begin));
    const BlockScan found = ScanBlock(block);
    if (!found.valid) return scan;
    if (found.best > scan.best) {
      scan.best = found.best;
      best_begin = begin;
    }
  }
  if (scan.best == -kInfinity) return scan;
  const auto at = std::find(logits.begin() + static_cast<int64_t>(best_begin),
                            logits.end(), scan.best);
  scan.best_id = static_cast<int32_t>(at - logits.begin());
  scan.valid = true;
  return scan;
}

int32_t RankOf(std::span<const float> logits, int32_t id) {
  const float value = logits[static_cast<size_t>(id)];
  int32_t greater = 0;
  for (const float logit : logits) greater += logit > value ? 1 : 0;
  int32_t equal_below = 0;
  for (int32_t i = 0; i < id; ++i) {
    equal_below += logits[static_cast<size_t>(i)] == value ? 1 : 0;
  }
  return greater + equal_below + 1;
}

void SelectBest(std::span<const float> logits, int64_t count,
                std::vector<Candidate>* out) {
  const auto wanted = static_cast<size_t>(
      std::min<int64_t>(count, static_cast<int64_t>(logits.size())));
  // Candidates gather up to twice the number before they are cut back, so
  // that a cut is paid for by as many arrivals.
  const size_t full = 2 * wanted + 64;
  out->clear();
  if (wanted == 0) return;
  const auto cut = [&] {
    const auto last = out->begin() + static_cast<int64_t>(wanted) - 1;
    std::nth_element(out->begin(), last, out->end(), IsBefore);
    out->resize(wanted);
    return out->back().logit;
  };
  // Ids ascend, so once `wanted` tokens with at least `threshold` were seen,
  // only a greater logit can come before them.
  bool has_threshold = false;
  float threshold = -kInfinity;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (has_threshold && !(logits[i] > threshold)) continue;
    out->push_back({.id = static_cast<int32_t>(i), .logit = logits[i]});
    if (out->size() == full) {
      threshold = cut();
      has_threshold = true;
    }
  }
  if (out->size() > wanted) cut();
}

void WeightTable::Compute(std::span<const float> logits, float best,
                          float temperature) {
  weights_.resize(logits.size());
  block_sums_.clear();
  total_ = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const size_t size = std::min<size_t>(kBlock, logits.size() - begin);
    ExpBlock(logits.subspan(begin, size), best, temperature,
             weights_.data() + begin);
    block_sums_.push_back(SumBlock({weights_.data() + begin, size}));
    total_ += block_sums_.back();
  }
}

int32_t WeightTable::Find(double target) const {
  double cumulative = 0;
  size_t block = 0;
  while (block + 1 < block_sums_.size() &&
         !(cumulative + block_sums_[block] > target)) {
    cumulative += block_sums_[block++];
  }
  const size_t end = std::min<size_t>((block + 1) * kBlock, weights_.size());
  for (size_t i = block * kBlock; i < end; ++i) {
    cumulative += static_cast<double>(weights_[i]);
    if (cumulative > target) return static_cast<int32_t>(i);
  }
  // Rounding left none: the last token with a weight so far.
  size_t last = end - 1;
  while (last > 0 && weights_[last] == 0) --last;
  return static_cast<int32_t>(last);
}

double LogSumExp(std::span<const float> logits, float best) {
  constexpr size_t kBlock = 256;
  std::array<float, kBlock> weights;
  double total = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const size_t size = std::min(kBlock, logits.size() - begin);
    ExpBlock(logits.subspan(begin, size), best, 1.0f, weights.data());
    total += SumBlock({weights.data(), size});
  }
  return std::log(total);
}

}  // namespace nibble::kernels::reference
