// One sequence of tokens that is being computed.
#pragma once

#include <cstdint>
#include <vector>

namespace nibble::scheduler {

using SequenceId = uint64_t;

// What a caller hands to Scheduler::Add.
struct SequenceParams {
  SequenceId id = 0;            // unique among live sequences
  std::vector<int32_t> prompt;  // at least one token
  int32_t max_new_tokens = 0;   // 0: prompt only
  int32_t priority = 0;         // higher runs first
  // Logits of every prompt row are wanted (prompt logprobs): the prefix cache
  // is not used for it and its chunks obey max_logit_rows.
  bool all_logits = false;
  // Mixed into the page hashes: sequences share pages only under one salt.
  uint64_t cache_salt = 0;
};

// A live sequence: owned by the Scheduler, engine thread only.
//
// Tokens [0, num_computed) have keys and values in its pages. A step runs
// n >= 1 tokens from num_computed on; when that reaches the last token, the
// step's logits give the next one.
struct Sequence {
  SequenceId id = 0;
  int32_t priority = 0;
  uint64_t arrival = 0;  // order of Add: smaller is older
  bool all_logits = false;
  uint64_t cache_salt = 0;
  std::vector<int32_t> tokens;  // prompt, then generated
  int32_t num_prompt = 0;
  int32_t max_tokens = 0;    // num_prompt + max_new_tokens
  int32_t num_computed = 0;  // tokens whose keys and values are in pages
  int32_t num_cached = 0;    // of those, found in the prefix cache at first
  int32_t num_preemptions = 0;
  std::vector<int32_t> pages;  // page ids, in order of position
  // Chained hash of each full page of `tokens`, from the first on, as far as
  // it was needed; depends on the tokens only, so it outlives a preemption.
  std::vector<uint64_t> page_hashes;

  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_generated() const { return num_tokens() - num_prompt; }
};

}  // namespace nibble::scheduler
