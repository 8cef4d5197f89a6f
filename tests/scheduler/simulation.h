// A scheduler with a fake model behind it that notices every wrong page.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "scheduler/scheduler.h"

namespace nibble::scheduler {

// One item of a step, as values: it outlives the sequence.
struct ItemRecord {
  SequenceId id = 0;
  int32_t first = 0;
  int32_t count = 0;
  bool generated = false;
  bool samples = false;
  bool all_logits = false;
  bool operator==(const ItemRecord&) const = default;
};
void PrintTo(const ItemRecord& item, std::ostream* out);

struct StepRecord {
  std::vector<ItemRecord> items;
  std::vector<SequenceId> preempted;
  std::vector<SequenceId> freed;
  int32_t rows = 0;
  int32_t generated_rows = 0;
  int32_t logit_rows = 0;
};

struct SimulationOptions {
  SchedulerOptions scheduler;
  int32_t vocab = 1000;
  // One of so many prefixes ends its sequence; 0: none does.
  uint64_t stop_one_in = 0;
  PagePool::HashFunction hash = &PagePool::DefaultHash;
};

// Runs a Scheduler over a fake model; owned by a test.
//
// The fake KV array keeps for each slot the token, its position and a hash of
// the whole prefix with the origin of each token and the salt. The next token
// is a pure function of the prefix hash that stands in the sequence's last
// slot, read through its page table, so a wrong page gives wrong tokens; and
// each step checks every slot that a sequence reads, every plan's limits, and
// that the pages' counts are those of the page tables.
class Simulation final {
 public:
  explicit Simulation(const SimulationOptions& options);

  void Add(SequenceParams params);
  bool Cancel(SequenceId id);
  // One step; `cancel` happens between Schedule and Commit.
  StepRecord Step(const std::vector<SequenceId>& cancel = {});
  // As above, with any action in between.
  StepRecord StepWith(const std::function<void()>& between);
  // Steps until nothing is live; fails after `max_steps`. Returns the steps.
  int RunUntilIdle(int max_steps);

  // What the sequence generates when nothing else exists, computed without a
  // scheduler.
  std::vector<int32_t> Alone(const SequenceParams& params) const;

  Scheduler& scheduler() { return scheduler_; }
  // Generated tokens of finished sequences.
  const std::map<SequenceId, std::vector<int32_t>>& finished() const {
    return finished_;
  }
  // Live sequences and what they were added with.
  const std::map<SequenceId, SequenceParams>& live() const { return live_; }
  int32_t cached_of(SequenceId id) const { return cached_.at(id); }
  void CheckPages() const;

 private:
  struct Cell {
    int32_t token = -1;
    int32_t position = -1;
    uint64_t prefix = 0;
  };

  uint64_t Extend(uint64_t prefix, int32_t token, bool generated) const;
  int32_t NextToken(uint64_t prefix) const;
  bool Stops(uint64_t prefix) const;
  void CheckPlan(const StepPlan& plan) const;
  void CheckItem(const StepItem& item) const;
  void CheckPreempted(const StepPlan& plan) const;
  // Reads the prefix, writes the rows; returns the last prefix hash.
  uint64_t Compute(const StepItem& item, bool is_live);
  const Cell& CellAt(const Sequence& sequence, int32_t position) const;
  void NoteLogits(const StepItem& item);
  void NoteFreed(const std::vector<SequenceId>& freed);

  SimulationOptions options_;
  Scheduler scheduler_;
  std::vector<Cell> cells_;  // [pages * page_size]
  std::map<SequenceId, SequenceParams> live_;
  std::map<SequenceId, std::vector<int32_t>> generated_;  // of live ones
  std::map<SequenceId, std::vector<int32_t>> finished_;
  std::map<SequenceId, int32_t> cached_;  // num_cached, once started
  // How often each prompt row's logits were given, of all_logits sequences.
  std::map<SequenceId, std::vector<int32_t>> logits_;
};

}  // namespace nibble::scheduler
