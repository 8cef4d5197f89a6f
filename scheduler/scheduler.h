// Which sequence computes what in the next step: pure policy.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "scheduler/page_pool.h"
#include "scheduler/sequence.h"

namespace nibble::scheduler {

struct SchedulerOptions {
  int32_t max_batch_rows = 512;  // rows (tokens) of one step; at least
                                 // max_sequences
  int32_t max_sequences = 64;    // running at once
  int32_t max_logit_rows = 128;  // rows of one step whose logits are wanted;
                                 // at least max_sequences
  int32_t page_size = 16;        // tokens
  int32_t pages = 0;
  bool prefix_cache = true;
  // Prompt and generated rows run on different kernels (--numerics=stable):
  // pages then remember their origin.
  bool origin_matters = true;
};

// One sequence's share of a step: tokens [first, first + count) of it.
struct StepItem {
  const Sequence* sequence = nullptr;  // valid until Commit
  int32_t first = 0;
  int32_t count = 0;
  // The rows are generated tokens (also when recomputed after preemption);
  // an item never crosses the end of the prompt.
  bool generated = false;
  // The item reaches the sequence's last token and one more may follow: its
  // last row's logits give the next token.
  bool samples = false;
  // Logits of all `count` rows are wanted. Each prompt row of an all_logits
  // sequence is in exactly one such item: rows computed again after a
  // preemption are not asked for a second time.
  bool all_logits = false;
};

// One step's work, generated rows first. Valid until Commit.
struct StepPlan {
  std::vector<StepItem> items;
  std::vector<SequenceId> preempted;  // lost their pages in this Schedule
  int32_t rows = 0;
  int32_t generated_rows = 0;
  int32_t logit_rows = 0;
  bool empty() const { return items.empty(); }
};

// What came of one item that sampled.
struct SampledToken {
  SequenceId id = 0;
  int32_t token = 0;
  bool finished = false;  // a stop rule hit: free the sequence
};

// Numbers for gauges, computed from state, never counted up and down.
struct SchedulerStats {
  int32_t waiting = 0;
  int32_t running = 0;
  int32_t waiting_tokens = 0;  // known tokens of the waiting ones
  int32_t pages_total = 0;
  int32_t pages_used = 0;
  int32_t pages_cached = 0;
  uint64_t preemptions = 0;          // since start
  uint64_t prefix_query_tokens = 0;  // prompt tokens looked up, once each
  uint64_t prefix_hit_tokens = 0;    // of those, found
  uint64_t recomputed_tokens = 0;    // computed again after preemption
};

// Continuous batching with chunked prefill over a paged KV cache.
//
// Engine thread only; no clock, no text, no threads. A step is
// Schedule -> (compute) -> Commit; Add and Cancel come in between steps.
// Policy (scheduler/README.md): running sequences that generate come first,
// one row each; what is left of the row budget goes to prompts, older and
// higher-priority ones first. When pages run out the lowest-priority, youngest
// sequence is preempted: its pages are freed and it is computed again later,
// with the same result. Every sequence that CanEverFit progresses.
class Scheduler final {
 public:
  explicit Scheduler(const SchedulerOptions& options);
  Scheduler(const SchedulerOptions& options, PagePool::HashFunction hash);
  ~Scheduler();

  // Whether a sequence of this many tokens (prompt and generated) fits the
  // pool when it is alone. Thread-safe: depends on the options only.
  bool CanEverFit(int64_t tokens) const;

  // Takes the sequence in; `params.prompt.size() + max_new_tokens` must
  // CanEverFit and the id must not be live.
  void Add(SequenceParams params);

  // Drops a live sequence and frees its pages; unknown ids are ignored.
  // Returns whether it was live. If it is in a plan that is not committed yet,
  // its StepItem can be read until then, and the rows may still be computed:
  // nobody gets its pages before the next Schedule.
  bool Cancel(SequenceId id);

  // The next step. Empty only when no sequence is live. The plan before must
  // have been committed.
  StepPlan Schedule();

  // Books the step: marks its rows computed, publishes full pages, appends
  // sampled tokens (one for each item with `samples`, in any order), frees
  // the sequences that finished, by `finished` or by reaching max_tokens.
  // A sequence cancelled between Schedule and Commit is skipped; its sampled
  // token may be given or left out, and its id may be live anew.
  // Returns the ids freed by this Commit, in the plan's order.
  std::vector<SequenceId> Commit(const StepPlan& plan,
                                 std::span<const SampledToken> sampled);

  // A live sequence, or null. Valid until the next Commit or Cancel.
  const Sequence* Find(SequenceId id) const;
  bool idle() const;
  SchedulerStats stats() const;
  const SchedulerOptions& options() const;
  const PagePool& pool() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::scheduler
