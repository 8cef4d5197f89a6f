// The prefix cache as sequences meet it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/scheduler/simulation.h"

namespace nibble::scheduler {
namespace {

using ::testing::ElementsAre;

uint64_t ConstantHash(uint64_t, std::span<const int32_t>) { return 7; }

SimulationOptions Options() {
  SimulationOptions options;
  options.scheduler.max_batch_rows = 32;
  options.scheduler.max_sequences = 4;
  options.scheduler.max_logit_rows = 8;
  options.scheduler.page_size = 4;
  options.scheduler.pages = 32;
  return options;
}

SequenceParams Params(SequenceId id, std::vector<int32_t> prompt,
                      int32_t max_new_tokens) {
  SequenceParams params;
  params.id = id;
  params.prompt = std::move(prompt);
  params.max_new_tokens = max_new_tokens;
  return params;
}

std::vector<int32_t> Count(int32_t count, int32_t first = 0) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Runs the sequence to its end; returns num_cached.
int32_t RunOne(Simulation& simulation, SequenceParams params) {
  const SequenceId id = params.id;
  simulation.Add(std::move(params));
  simulation.RunUntilIdle(100);
  return simulation.cached_of(id);
}

TEST(SchedulerCacheTest, TheLastPromptTokenIsAlwaysComputed) {
  for (const auto& [tokens, cached] : std::vector<std::pair<int32_t, int32_t>>{
           {3, 0}, {4, 0}, {5, 4}, {8, 4}, {9, 8}, {12, 8}, {13, 12}}) {
    Simulation simulation(Options());
    EXPECT_EQ(RunOne(simulation, Params(1, Count(tokens), 1)), 0);
    EXPECT_EQ(RunOne(simulation, Params(2, Count(tokens), 1)), cached);
    EXPECT_EQ(RunOne(simulation, Params(3, Count(tokens), 0)), cached);
    const SchedulerStats stats = simulation.scheduler().stats();
    EXPECT_EQ(stats.prefix_query_tokens, static_cast<uint64_t>(3 * tokens));
    EXPECT_EQ(stats.prefix_hit_tokens, static_cast<uint64_t>(2 * cached));
  }
}

TEST(SchedulerCacheTest, SharesTheCommonPagesOfTwoPrompts) {
  Simulation simulation(Options());
  std::vector<int32_t> other = Count(12);
  other[9] = 99;
  RunOne(simulation, Params(1, Count(12), 1));
  EXPECT_EQ(RunOne(simulation, Params(2, other, 1)), 8);
  other[1] = 98;
  EXPECT_EQ(RunOne(simulation, Params(3, other, 1)), 0);
}

TEST(SchedulerCacheTest, RunningSequencesShareToo) {
  Simulation simulation(Options());
  simulation.Add(Params(1, Count(12), 9));
  simulation.Step();
  simulation.Add(Params(2, Count(12), 9));
  simulation.Step();
  EXPECT_EQ(simulation.cached_of(2), 8);
  // Sequence 1: 4 pages; sequence 2: its third page was equal to one that
  // was there already, and only that one stays.
  EXPECT_EQ(simulation.scheduler().pool().used(), 4);
  simulation.RunUntilIdle(20);
}

TEST(SchedulerCacheTest, PromptsComputedTogetherKeepOneCopy) {
  Simulation simulation(Options());
  simulation.Add(Params(1, Count(12), 9));
  simulation.Add(Params(2, Count(12), 9));
  simulation.Step();
  EXPECT_EQ(simulation.cached_of(2), 0);
  EXPECT_EQ(simulation.scheduler().pool().used(), 3);
  simulation.RunUntilIdle(20);
}

TEST(SchedulerCacheTest, SaltsDoNotMeet) {
  Simulation simulation(Options());
  SequenceParams salted = Params(2, Count(12), 1);
  salted.cache_salt = 5;
  RunOne(simulation, Params(1, Count(12), 1));
  EXPECT_EQ(RunOne(simulation, salted), 0);
  salted.id = 3;
  EXPECT_EQ(RunOne(simulation, salted), 8);
}

TEST(SchedulerCacheTest, AllLogitsSkipsTheLookupButPublishes) {
  Simulation simulation(Options());
  SequenceParams all = Params(1, Count(12), 1);
  all.all_logits = true;
  EXPECT_EQ(RunOne(simulation, all), 0);
  all.id = 2;
  EXPECT_EQ(RunOne(simulation, all), 0);
  EXPECT_EQ(simulation.scheduler().stats().prefix_query_tokens, 0u);
  EXPECT_EQ(RunOne(simulation, Params(3, Count(12), 1)), 8);
}

TEST(SchedulerCacheTest, SwitchedOff) {
  SimulationOptions options = Options();
  options.scheduler.prefix_cache = false;
  Simulation simulation(options);
  RunOne(simulation, Params(1, Count(12), 1));
  EXPECT_EQ(RunOne(simulation, Params(2, Count(12), 1)), 0);
  EXPECT_EQ(simulation.scheduler().stats().pages_cached, 0);
  EXPECT_EQ(simulation.scheduler().stats().prefix_query_tokens, 0u);
}

// The next turn of a conversation: the answer is part of the prompt.
TEST(SchedulerCacheTest, APromptHitsGeneratedPagesOnlyWhereOriginsDoNotMatter) {
  for (const bool origin_matters : {true, false}) {
    SimulationOptions options = Options();
    options.scheduler.origin_matters = origin_matters;
    Simulation simulation(options);
    const SequenceParams first = Params(1, Count(6), 11);
    std::vector<int32_t> next = first.prompt;
    const std::vector<int32_t> answer = simulation.Alone(first);
    next.insert(next.end(), answer.begin(), answer.end());
    next.push_back(1);
    RunOne(simulation, first);
    // 16 tokens were computed: four full pages, one of them all prompt.
    EXPECT_EQ(simulation.scheduler().stats().pages_cached,
              origin_matters ? 1 : 4);
    EXPECT_EQ(RunOne(simulation, Params(2, next, 1)), origin_matters ? 4 : 16);
  }
}

TEST(SchedulerCacheTest, ARecomputedSequenceHitsItsGeneratedPages) {
  SimulationOptions options = Options();
  options.scheduler.max_sequences = 1;
  Simulation simulation(options);
  simulation.Add(Params(1, Count(6), 20));
  for (int i = 0; i < 12; ++i) simulation.Step();  // 17 computed, 18 known
  SequenceParams urgent = Params(2, {500}, 1);
  urgent.priority = 1;
  simulation.Add(urgent);
  EXPECT_THAT(simulation.Step().preempted, ElementsAre(1));
  EXPECT_EQ(simulation.scheduler().stats().pages_cached, 4);
  // Pages 0 to 3 come back, the mixed one (tokens 4 to 7) among them.
  EXPECT_THAT(simulation.Step().items,
              ElementsAre(ItemRecord{1, 16, 2, true, true, false}));
  EXPECT_EQ(simulation.scheduler().stats().recomputed_tokens, 1u);
  // What a recomputation finds is not a hit of the prompt.
  EXPECT_EQ(simulation.cached_of(1), 0);
  EXPECT_EQ(simulation.scheduler().stats().prefix_hit_tokens, 0u);
  simulation.RunUntilIdle(30);
  EXPECT_EQ(simulation.scheduler().stats().pages_cached, 1);
}

// Tokens 4 to 7 are prompt, prompt, generated, generated in one sequence and
// all prompt in the other: equal tokens, other kernels.
TEST(SchedulerCacheTest, TheBoundaryIsPartOfAMixedPage) {
  Simulation simulation(Options());
  const SequenceParams mixed = Params(1, Count(6), 11);
  const std::vector<int32_t> answer = simulation.Alone(mixed);
  std::vector<int32_t> longer = mixed.prompt;
  longer.insert(longer.end(), answer.begin(), answer.begin() + 4);
  simulation.Add(mixed);
  for (int i = 0; i < 8; ++i) simulation.Step();
  simulation.Add(Params(2, longer, 4));
  simulation.Step();
  EXPECT_EQ(simulation.cached_of(2), 4);
  simulation.RunUntilIdle(30);
}

TEST(SchedulerCacheTest, CollidingHashesNeverShareWrongly) {
  SimulationOptions options = Options();
  options.hash = &ConstantHash;
  Simulation simulation(options);
  RunOne(simulation, Params(1, Count(12), 3));
  EXPECT_EQ(RunOne(simulation, Params(2, Count(12, 100), 3)), 0);
  // The same second page after another first page.
  std::vector<int32_t> tokens = Count(12);
  tokens[0] = 77;
  EXPECT_EQ(RunOne(simulation, Params(3, tokens, 3)), 0);
  SequenceParams salted = Params(4, Count(12), 3);
  salted.cache_salt = 1;
  EXPECT_EQ(RunOne(simulation, salted), 0);
  EXPECT_EQ(RunOne(simulation, Params(5, Count(12), 3)), 8);
}

TEST(SchedulerCacheTest, CachedPagesGiveWayToThoseInUse) {
  SimulationOptions options = Options();
  options.scheduler.pages = 4;
  Simulation simulation(options);
  RunOne(simulation, Params(1, Count(13), 0));
  EXPECT_EQ(simulation.scheduler().stats().pages_cached, 3);
  RunOne(simulation, Params(2, Count(9, 50), 0));
  // The tail of the first prompt went first; its first page is still there.
  EXPECT_EQ(RunOne(simulation, Params(3, Count(13), 0)), 4);
}

}  // namespace
}  // namespace nibble::scheduler
