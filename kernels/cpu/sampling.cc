#include "kernels/cpu/sampling.h"

#include "kernels/cpu/row_ops.h"

namespace nibble::kernels::cpu {
namespace {

// Whether the answer is the greatest raw logit and nothing else.
bool IsPlainGreedy(const SampleRow& row) {
  const SamplingParams& params = *row.params;
  return params.temperature < kGreedyTemperature &&
         params.presence_penalty == 0.0f && params.frequency_penalty == 0.0f &&
         params.repetition_penalty == 1.0f && params.logit_bias.empty() &&
         row.banned.empty() && row.num_logprobs < 0 && row.forced_token < 0;
}

}  // namespace

void SampleOne(std::span<const float> logits, const SampleRow& row,
               reference::Sampler* sampler, SampleResult* result) {
  if (!IsPlainGreedy(row)) {
    sampler->Sample(logits, row, result);
    return;
  }
  const BestLogit best = FindBestLogit(logits);
  *result = SampleResult();
  result->finite = best.valid;
  if (best.valid) result->token = best.id;
}

}  // namespace nibble::kernels::cpu
