// Choosing the next token from logits: parameters, per-row input, result.
// What each step does, and in which order, is documented in
// docs/sampling.md; kernels/reference/sampling.cc is the oracle.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace nibble::kernels {

// Below this temperature the choice is the greatest logit (the lowest id
// among equals), whatever top_k, top_p, min_p, typical_p and seed say.
inline constexpr float kGreedyTemperature = 1e-5f;

// How a sequence samples. Ranges were checked before it got here. Immutable.
struct SamplingParams {
  float temperature = 0.0f;         // >= 0
  int32_t top_k = 0;                // 0: off
  float top_p = 1.0f;               // (0, 1]; 1: off
  float min_p = 0.0f;               // [0, 1]; 0: off
  float typical_p = 1.0f;           // (0, 1]; 1: off
  float presence_penalty = 0.0f;    // subtracted once if generated before
  float frequency_penalty = 0.0f;   // subtracted for each time generated
  float repetition_penalty = 1.0f;  // > 0; divides positive, multiplies
                                    // negative logits of tokens seen before,
                                    // prompt included
  uint64_t seed = 0;
  // (token id, bias) with distinct ids in [0, vocab); a bias may be -inf.
  std::vector<std::pair<int32_t, float>> logit_bias = {};
};

// One row to sample. Borrowed, valid during Backend::Sample only.
struct SampleRow {
  const SamplingParams* params = nullptr;
  // Prompt and generated tokens so far, for the penalties.
  std::span<const int32_t> prompt_tokens = {};
  std::span<const int32_t> generated_tokens = {};
  // The counter of the random number: the index of the token being chosen
  // within the generated ones. With the seed it decides the draw alone.
  uint64_t position = 0;
  // Ids that must not be chosen now (min_new_tokens: the end tokens).
  std::span<const int32_t> banned = {};
  // >= 0: report the logprob of the chosen token and of this many best ones.
  // -1: report none.
  int32_t num_logprobs = -1;
  // >= 0: choose nothing; report the logprob of this id (prompt logprobs).
  int32_t forced_token = -1;
};

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;  // natural logarithm
  int32_t rank = 0;   // 1 = the most probable
};

// What came out for one row.
struct SampleResult {
  int32_t token = -1;
  // False: the logits held a NaN or +infinity, or nothing but -infinity; the
  // token is then -1 and the request must end with an error.
  bool finite = true;
  // Log-softmax of the raw logits (before bias, penalties, temperature).
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // the best first; ties by the lower id
};

// Counter-based random numbers (Philox4x32-10, Salmon et al., "Parallel
// Random Numbers: As Easy as 1, 2, 3", SC 2011): a function of seed and
// position alone, uniform in [0, 1) with 53 bits.
double UniformAt(uint64_t seed, uint64_t position);

}  // namespace nibble::kernels
