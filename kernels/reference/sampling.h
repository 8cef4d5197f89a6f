// Sampling by the rules of docs/sampling.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/reference/kept_tokens.h"
#include "kernels/reference/vocab_ops.h"
#include "kernels/sampling.h"

namespace nibble::kernels::reference {

// Samples one row at a time; the memory it needs stays for the next. Owned
// by a backend (one for each thread that samples), used by one thread.
class Sampler final {
 public:
  // Overwrites *result. `logits` [V] are FP32, V >= 1; the ids in `row` lie in
  // [0, V).
  void Sample(std::span<const float> logits, const SampleRow& row,
              SampleResult* result);

 private:
  void ReportLogprobs(std::span<const float> logits, const SampleRow& row,
                      float best, SampleResult* result);
  // The logits after steps 4 to 6: `logits` itself when nothing changes.
  std::span<const float> Adjust(std::span<const float> logits,
                                const SampleRow& row);
  void ApplyPenalties(const SampleRow& row);
  // Steps 9 to 14.
  int32_t Draw(std::span<const float> logits, float best, const SampleRow& row);
  // Fill kept_ with what step 10 keeps; with all that steps 11 to 13 may keep.
  void CollectTopK(std::span<const float> logits, float best,
                   const SamplingParams& params);
  void CollectCandidates(std::span<const float> logits, float best,
                         const SamplingParams& params);

  std::vector<float> adjusted_;  // [V], steps 4 to 6
  std::vector<int32_t> counts_;  // [V], all 0 between rows
  std::vector<Candidate> top_;   // step 2
  WeightTable table_;            // step 9
  KeptTokens kept_;              // steps 10 to 14
};

}  // namespace nibble::kernels::reference
