// The Scheduler's state, shared by scheduler.cc (Add, Cancel, Commit) and
// schedule.cc (Schedule). Private to this folder.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "scheduler/page_pool.h"
#include "scheduler/scheduler.h"
#include "scheduler/sequence.h"

namespace nibble::scheduler {

// A sequence with what only the scheduler knows of it: owned by
// Scheduler::Impl.
struct LiveSequence : Sequence {
  enum class State : uint8_t { kWaiting, kRunning, kCancelled };
  State state = State::kWaiting;
  bool in_plan = false;       // of the plan that is not committed yet
  bool was_started = false;   // num_cached is known
  int32_t max_computed = 0;   // highest num_computed ever
  uint64_t preempted_in = 0;  // number of the Schedule that last preempted it

  bool in_prompt() const { return num_computed < num_prompt; }
  // Its next item is the one row that generates.
  bool decodes() const {
    return num_generated() > 0 && num_computed + 1 == num_tokens();
  }
  // The logits of its next rows are wanted and were not given out yet.
  bool wants_all_logits() const {
    return all_logits && in_prompt() && num_computed >= max_computed;
  }
  bool samples_at(int32_t end) const {
    return end == num_tokens() && end < max_tokens;
  }
  // Tokens that will ever be computed: the last generated one never is.
  int32_t compute_limit() const {
    return max_tokens > num_prompt ? max_tokens - 1 : num_prompt;
  }
};

// Rank: higher priority first, then older first. Fixed while live.
struct ByRank {
  bool operator()(const LiveSequence* a, const LiveSequence* b) const {
    if (a->priority != b->priority) return a->priority > b->priority;
    return a->arrival < b->arrival;
  }
};
using RankedSet = std::set<LiveSequence*, ByRank>;

// The waiting sequences in rank order, with the sum of their tokens (a
// waiting sequence's tokens do not change). Owned by Scheduler::Impl.
class WaitingQueue final {
 public:
  void Insert(LiveSequence* sequence);
  void Erase(LiveSequence* sequence);
  bool empty() const { return set_.empty(); }
  int32_t size() const { return static_cast<int32_t>(set_.size()); }
  int64_t tokens() const { return tokens_; }
  LiveSequence* first() const { return *set_.begin(); }

 private:
  RankedSet set_;
  int64_t tokens_ = 0;
};

// See scheduler.h; owned by it, engine thread only.
struct Scheduler::Impl {
  Impl(const SchedulerOptions& options, PagePool::HashFunction hash);

  // scheduler.cc
  void Add(SequenceParams params);
  bool Cancel(SequenceId id);
  std::vector<SequenceId> Commit(const StepPlan& plan,
                                 std::span<const SampledToken> sampled);
  void Book(const StepItem& item, LiveSequence& sequence);
  void PublishPages(LiveSequence& sequence, int32_t first, int32_t end);
  void Finish(LiveSequence& sequence);
  void DiscardPages(const LiveSequence& sequence);
  uint64_t HashOfPage(LiveSequence& sequence, int32_t index);
  PageKey KeyOfPage(const LiveSequence& sequence, int32_t index) const;
  SchedulerStats Stats() const;

  // schedule.cc
  StepPlan Schedule();
  // What the running sequences ask for, kept up to date during admission.
  struct Load;
  Load MeasureLoad() const;
  void Admit(StepPlan& plan);
  bool TryStart(LiveSequence& head, Load& load, StepPlan& plan);
  bool MayStart(const LiveSequence& head, Load& load) const;
  std::optional<std::vector<LiveSequence*>> FindVictims(
      const LiveSequence& head, const Load& load) const;
  void TakeCachedPrefix(LiveSequence& sequence);
  void DropPages(LiveSequence& sequence);
  void Start(LiveSequence& sequence);
  void Preempt(LiveSequence& sequence, StepPlan& plan);
  // Rows and logit rows of the step that nobody has or will need.
  struct Budget;
  void GiveRows(StepPlan& plan);
  int32_t RowsFor(const LiveSequence& sequence, const Budget& budget) const;
  int32_t TakePages(LiveSequence& sequence, int32_t rows, StepPlan& plan);
  int32_t RowsWanted(const LiveSequence& sequence) const;
  int32_t PagesFor(int64_t tokens) const;
  int32_t PagesReserved(const LiveSequence& sequence) const;

  const SchedulerOptions options;
  PagePool pool;
  absl::flat_hash_map<SequenceId, std::unique_ptr<LiveSequence>> live;
  WaitingQueue waiting;
  RankedSet running;
  // The sequences of the plan that is not committed yet, item by item.
  std::vector<LiveSequence*> pending;
  // Cancelled while in that plan; kept for its readers until Commit.
  std::vector<std::unique_ptr<LiveSequence>> cancelled;
  uint64_t next_arrival = 0;
  uint64_t schedules = 0;
  uint64_t preemptions = 0;
  uint64_t prefix_query_tokens = 0;
  uint64_t prefix_hit_tokens = 0;
  uint64_t recomputed_tokens = 0;
};

}  // namespace nibble::scheduler
