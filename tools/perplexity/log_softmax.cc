#include "tools/perplexity/log_softmax.h"

#include <algorithm>
#include <cmath>

namespace nibble::tools {

LogSoftmax ComputeLogSoftmax(std::span<const float> logits) {
  const auto best = std::max_element(logits.begin(), logits.end());
  // Each term is a float in [0, 1], the sum a double: the error stays below
  // one float epsilon, whatever the vocabulary's size.
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - *best);
  return {.log_sum = *best + std::log(sum),
          .top = static_cast<int32_t>(best - logits.begin())};
}

}  // namespace nibble::tools
