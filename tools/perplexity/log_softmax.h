// Log-probabilities of one row of logits, in double precision.
#pragma once

#include <cstdint>
#include <span>

namespace nibble::tools {

// A row of logits seen as a distribution: log p(i) = logits[i] - log_sum.
struct LogSoftmax {
  double log_sum = 0;  // log of the sum of exp(logits)
  int32_t top = 0;     // the most probable id, the lowest among equals
};

// `logits` is not empty and finite.
LogSoftmax ComputeLogSoftmax(std::span<const float> logits);

}  // namespace nibble::tools
