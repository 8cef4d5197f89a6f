// Random traces: whatever is added, cancelled, shared and preempted, each
// sequence gets the tokens that it gets alone, and no page is lost.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/scheduler/simulation.h"

namespace nibble::scheduler {
namespace {

uint64_t ConstantHash(uint64_t, std::span<const int32_t>) { return 1; }

// Makes and drives one random trace; lives for one seed.
class Trace final {
 public:
  explicit Trace(uint32_t seed) : random_(seed), simulation_(RandomOptions()) {
    for (std::vector<int32_t>& base : bases_) {
      base = RandomTokens(Uniform(1, 3 * options_.scheduler.page_size + 2));
    }
  }

  void Run() {
    int64_t work = 0;  // tokens that could be computed
    for (int i = 0; i < 60 && !testing::Test::HasFailure(); ++i) {
      for (int n = Uniform(0, 2); n > 0; --n) work += AddRandom();
      if (Uniform(0, 9) == 0) CancelRandom();
      simulation_.StepWith([&] {
        if (Uniform(0, 5) == 0) CancelRandom();
        if (Uniform(0, 9) == 0) work += AddRandom();
        // An id that was just dropped is a new sequence.
        if (Uniform(0, 9) == 0) work += ReuseId();
      });
    }
    // The best ranked one moves at least every max_sequences-th step.
    const int64_t limit = (work + 1) * (1 + options_.scheduler.max_sequences);
    simulation_.RunUntilIdle(static_cast<int>(limit));
    preemptions_ = simulation_.scheduler().stats().preemptions;
    hits_ = simulation_.scheduler().stats().prefix_hit_tokens;
  }

  uint64_t preemptions() const { return preemptions_; }
  uint64_t hits() const { return hits_; }

 private:
  int32_t Uniform(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }

  std::vector<int32_t> RandomTokens(int32_t count) {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = Uniform(0, options_.vocab - 1);
    return tokens;
  }

  const SimulationOptions& RandomOptions() {
    SchedulerOptions& scheduler = options_.scheduler;
    scheduler.max_sequences = Uniform(1, 6);
    scheduler.max_batch_rows = scheduler.max_sequences + Uniform(0, 12);
    scheduler.max_logit_rows = scheduler.max_sequences + Uniform(0, 4);
    scheduler.page_size = Uniform(0, 2) == 0 ? Uniform(1, 16) : Uniform(1, 4);
    scheduler.pages = Uniform(3, 24);
    scheduler.prefix_cache = Uniform(0, 7) != 0;
    scheduler.origin_matters = Uniform(0, 2) != 0;
    options_.vocab = Uniform(1, 4);
    options_.stop_one_in = Uniform(0, 1) == 0 ? 0 : 12;
    if (Uniform(0, 3) == 0) options_.hash = &ConstantHash;
    return options_;
  }

  SequenceParams RandomParams(SequenceId id) {
    const int32_t capacity =
        options_.scheduler.pages * options_.scheduler.page_size;
    SequenceParams params;
    params.id = id;
    params.prompt = bases_[Uniform(0, 2)];
    // Sometimes a second turn: an earlier prompt with its answer.
    if (!history_.empty() && Uniform(0, 3) == 0) {
      const SequenceParams& before =
          history_[Uniform(0, static_cast<int32_t>(history_.size()) - 1)];
      params.prompt = before.prompt;
      const std::vector<int32_t> answer = simulation_.Alone(before);
      params.prompt.insert(params.prompt.end(), answer.begin(), answer.end());
    }
    const std::vector<int32_t> tail =
        RandomTokens(Uniform(0, 2 * options_.scheduler.page_size));
    params.prompt.insert(params.prompt.end(), tail.begin(), tail.end());
    if (static_cast<int32_t>(params.prompt.size()) > capacity) {
      params.prompt.resize(capacity);
    }
    const auto room = capacity - static_cast<int32_t>(params.prompt.size());
    params.max_new_tokens =
        std::min(room, Uniform(0, 2) == 0 ? Uniform(0, 2) : Uniform(0, 30));
    params.priority = std::max(0, Uniform(-3, 2));
    params.all_logits = Uniform(0, 6) == 0;
    params.cache_salt = Uniform(0, 4) == 0 ? 1 : 0;
    return params;
  }

  int64_t AddRandom() { return Add(next_id_++); }

  int64_t Add(SequenceId id) {
    const SequenceParams params = RandomParams(id);
    history_.push_back(params);
    simulation_.Add(params);
    return static_cast<int64_t>(params.prompt.size()) + params.max_new_tokens;
  }

  void CancelRandom() {
    if (simulation_.live().empty()) return;
    auto victim = simulation_.live().begin();
    std::advance(
        victim,
        Uniform(0, static_cast<int32_t>(simulation_.live().size()) - 1));
    dropped_id_ = victim->first;
    EXPECT_TRUE(simulation_.Cancel(dropped_id_));
    EXPECT_FALSE(simulation_.Cancel(dropped_id_));
  }

  int64_t ReuseId() {
    if (dropped_id_ == 0 || simulation_.live().contains(dropped_id_)) return 0;
    return Add(dropped_id_);
  }

  std::mt19937 random_;
  SimulationOptions options_;
  Simulation simulation_;
  std::vector<int32_t> bases_[3];
  std::vector<SequenceParams> history_;
  SequenceId next_id_ = 1;
  SequenceId dropped_id_ = 0;
  uint64_t preemptions_ = 0;
  uint64_t hits_ = 0;
};

TEST(SchedulerFuzzTest, EachSequenceGetsTheTokensItGetsAlone) {
  uint64_t preemptions = 0;
  uint64_t hits = 0;
  for (uint32_t seed = 0; seed < 800; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Trace trace(seed);
    trace.Run();
    preemptions += trace.preemptions();
    hits += trace.hits();
    if (HasFailure()) break;
  }
  // The traces do reach what they are for.
  EXPECT_GT(preemptions, 3000u);
  EXPECT_GT(hits, 10000u);
}

}  // namespace
}  // namespace nibble::scheduler
