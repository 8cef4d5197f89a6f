#include "kernels/cpu/rope_table.h"

#include <algorithm>
#include <cmath>

#include "base/checked_math.h"

namespace nibble::kernels::cpu {
namespace {

// Rows that one task computes: a sine and a cosine take some 50 ns.
constexpr int64_t kRowsPerTask = 16;

bool Same(const RopeParams& a, const RopeParams& b) {
  return a.pairing == b.pairing && a.attention_factor == b.attention_factor &&
         a.inverse_frequency == b.inverse_frequency;
}

}  // namespace

void RopeTable::Prepare(const RopeParams& rope,
                        std::span<const int32_t> positions, ThreadPool& pool) {
  if (prepared_ && Same(rope, rope_)) return;
  if (!Same(rope, rope_)) rope_ = rope;
  prepared_ = true;
  rotary_dims_ = 2 * static_cast<int32_t>(rope.inverse_frequency.size());
  const auto rows = static_cast<int64_t>(positions.size());
  const size_t needed = positions.size() * 2 * rotary_dims_;
  if (factors_.size() < needed) factors_.resize(needed);
  pool.ParallelFor(DivideUp(rows, kRowsPerTask), [&](int64_t task, int) {
    const int64_t end = std::min(rows, (task + 1) * kRowsPerTask);
    for (int64_t row = task * kRowsPerTask; row < end; ++row) {
      ComputeRow(positions[row], factors_.data() + row * 2 * rotary_dims_);
    }
  });
}

void RopeTable::ComputeRow(int32_t position, float* row) const {
  const int32_t pairs = rotary_dims_ / 2;
  const bool adjacent = rope_.pairing == RopeParams::Pairing::kAdjacent;
  const double factor = rope_.attention_factor;
  float* cosine = row;
  float* sine = row + rotary_dims_;
  for (int32_t i = 0; i < pairs; ++i) {
    // FP64: at position 100,000 an FP32 angle is off by 0.004.
    const double angle = static_cast<double>(position) *
                         static_cast<double>(rope_.inverse_frequency[i]);
    const int32_t first = adjacent ? 2 * i : i;
    const int32_t second = adjacent ? 2 * i + 1 : i + pairs;
    cosine[first] = cosine[second] =
        static_cast<float>(std::cos(angle) * factor);
    sine[second] = static_cast<float>(std::sin(angle) * factor);
    sine[first] = -sine[second];
  }
}

RopeRow RopeTable::Row(int64_t row) const {
  const float* at = factors_.data() + row * 2 * rotary_dims_;
  return {.cosine = at,
          .sine = at + rotary_dims_,
          .rotary_dims = rotary_dims_,
          .pairing = rope_.pairing};
}

}  // namespace nibble::kernels::cpu
