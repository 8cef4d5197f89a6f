// Rows, order, limits, finishing and cancelling. Pages and preemption:
// scheduler_pages_test.cc. The prefix cache: scheduler_cache_test.cc.
#include "scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/scheduler/simulation.h"

namespace nibble::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

SimulationOptions Options() {
  SimulationOptions options;
  options.scheduler.max_batch_rows = 8;
  options.scheduler.max_sequences = 4;
  options.scheduler.max_logit_rows = 4;
  options.scheduler.page_size = 4;
  options.scheduler.pages = 64;
  return options;
}

// A prompt that shares nothing with that of another id.
SequenceParams Params(SequenceId id, int32_t prompt_tokens,
                      int32_t max_new_tokens, int32_t priority = 0) {
  SequenceParams params;
  params.id = id;
  params.prompt.resize(prompt_tokens);
  std::iota(params.prompt.begin(), params.prompt.end(),
            static_cast<int32_t>(id) * 10000);
  params.max_new_tokens = max_new_tokens;
  params.priority = priority;
  return params;
}

ItemRecord Prompt(SequenceId id, int32_t first, int32_t count,
                  bool samples = false) {
  return {id, first, count, false, samples, false};
}
ItemRecord Decode(SequenceId id, int32_t first) {
  return {id, first, 1, true, true, false};
}

TEST(SchedulerTest, OneSequenceFromPromptToEnd) {
  Simulation simulation(Options());
  simulation.Add(Params(1, 10, 3));
  EXPECT_THAT(simulation.Step().items, ElementsAre(Prompt(1, 0, 8)));
  EXPECT_THAT(simulation.Step().items, ElementsAre(Prompt(1, 8, 2, true)));
  EXPECT_THAT(simulation.Step().items, ElementsAre(Decode(1, 10)));
  const StepRecord last = simulation.Step();
  EXPECT_THAT(last.items, ElementsAre(Decode(1, 11)));
  EXPECT_THAT(last.freed, ElementsAre(1));
  EXPECT_TRUE(simulation.scheduler().idle());
  EXPECT_THAT(simulation.Step().items, IsEmpty());
  EXPECT_THAT(simulation.finished().at(1), SizeIs(3));
}

TEST(SchedulerTest, MaxNewTokensZeroOneTwo) {
  Simulation simulation(Options());
  for (const int32_t tokens : {0, 1, 2}) {
    simulation.Add(Params(tokens + 1, 2, tokens));
  }
  const StepRecord step = simulation.Step();
  EXPECT_THAT(step.items, ElementsAre(Prompt(1, 0, 2), Prompt(2, 0, 2, true),
                                      Prompt(3, 0, 2, true)));
  EXPECT_EQ(step.logit_rows, 2);
  EXPECT_THAT(step.freed, ElementsAre(1, 2));
  EXPECT_THAT(simulation.Step().freed, ElementsAre(3));
  EXPECT_THAT(simulation.finished().at(1), IsEmpty());
  EXPECT_THAT(simulation.finished().at(2), SizeIs(1));
  EXPECT_THAT(simulation.finished().at(3), SizeIs(2));
}

TEST(SchedulerTest, DecodeRowsComeFirstAndPromptsGetTheRest) {
  Simulation simulation(Options());
  simulation.Add(Params(1, 2, 20));
  simulation.Add(Params(2, 3, 20));
  simulation.Step();
  simulation.Add(Params(3, 50, 1));
  const StepRecord step = simulation.Step();
  EXPECT_THAT(step.items,
              ElementsAre(Decode(1, 2), Decode(2, 3), Prompt(3, 0, 6)));
  EXPECT_EQ(step.rows, 8);
  EXPECT_EQ(step.generated_rows, 2);
  // A long prompt never holds up those that generate.
  for (int i = 1; i < 8; ++i) {
    EXPECT_THAT(
        simulation.Step().items,
        ElementsAre(Decode(1, 2 + i), Decode(2, 3 + i), Prompt(3, 6 * i, 6)));
  }
}

TEST(SchedulerTest, DecodeFirstAlsoForALowerPriority) {
  Simulation simulation(Options());
  simulation.Add(Params(1, 2, 20));
  simulation.Step();
  simulation.Add(Params(2, 30, 2, 5));
  EXPECT_THAT(simulation.Step().items,
              ElementsAre(Decode(1, 2), Prompt(2, 0, 7)));
}

TEST(SchedulerTest, PromptsGoByPriorityThenAge) {
  Simulation simulation(Options());
  simulation.Add(Params(1, 5, 1));
  simulation.Add(Params(2, 5, 1));
  simulation.Add(Params(3, 6, 1, 1));
  EXPECT_THAT(simulation.Step().items,
              ElementsAre(Prompt(3, 0, 6, true), Prompt(1, 0, 2)));
  // The older one goes on before a younger one begins.
  EXPECT_THAT(simulation.Step().items,
              ElementsAre(Prompt(1, 2, 3, true), Prompt(2, 0, 5, true)));
}

TEST(SchedulerTest, HigherPriorityOvertakesAPromptInTheMiddle) {
  Simulation simulation(Options());
  simulation.Add(Params(1, 30, 1));
  EXPECT_THAT(simulation.Step().items, ElementsAre(Prompt(1, 0, 8)));
  simulation.Add(Params(2, 5, 1, 1));
  EXPECT_THAT(simulation.Step().items,
              ElementsAre(Prompt(2, 0, 5, true), Prompt(1, 8, 3)));
  EXPECT_EQ(simulation.scheduler().stats().preemptions, 0u);
}

TEST(SchedulerTest, SlotsAreLimited) {
  SimulationOptions options = Options();
  options.scheduler.max_sequences = 2;
  Simulation simulation(options);
  for (SequenceId id = 1; id <= 5; ++id) simulation.Add(Params(id, 1, 2));
  EXPECT_THAT(simulation.Step().items,
              ElementsAre(Prompt(1, 0, 1, true), Prompt(2, 0, 1, true)));
  const SchedulerStats stats = simulation.scheduler().stats();
  EXPECT_EQ(stats.running, 2);
  EXPECT_EQ(stats.waiting, 3);
  EXPECT_EQ(stats.waiting_tokens, 3);
  EXPECT_EQ(stats.pages_total, 64);
  EXPECT_EQ(stats.pages_used, 2);
  simulation.Step();
  EXPECT_THAT(simulation.Step().items,
              ElementsAre(Prompt(3, 0, 1, true), Prompt(4, 0, 1, true)));
}

TEST(SchedulerTest, HigherPriorityTakesASlotOnlyWhenNoneIsFree) {
  SimulationOptions options = Options();
  options.scheduler.max_sequences = 2;
  Simulation simulation(options);
  simulation.Add(Params(1, 2, 9));
  simulation.Add(Params(2, 2, 9));
  simulation.Step();
  // An equal priority waits.
  simulation.Add(Params(3, 2, 9));
  EXPECT_THAT(simulation.Step().preempted, IsEmpty());
  simulation.Add(Params(4, 2, 2, 1));
  const StepRecord step = simulation.Step();
  EXPECT_THAT(step.preempted, ElementsAre(2));
  EXPECT_THAT(step.items, ElementsAre(Decode(1, 3), Prompt(4, 0, 2, true)));
  // The preempted one comes back before the younger one. Its generated
  // tokens are never in one item with its prompt.
  EXPECT_THAT(simulation.Step().freed, ElementsAre(4));
  EXPECT_THAT(simulation.Step().items,
              ElementsAre(Decode(1, 5), Prompt(2, 0, 2)));
  EXPECT_THAT(
      simulation.Step().items,
      ElementsAre(Decode(1, 6), ItemRecord{2, 2, 2, true, true, false}));
  EXPECT_EQ(simulation.scheduler().stats().preemptions, 1u);
  EXPECT_EQ(simulation.scheduler().stats().recomputed_tokens, 3u);
  simulation.RunUntilIdle(30);
}

TEST(SchedulerTest, HigherPriorityTakesTheRowOfTheOneItPreempts) {
  SimulationOptions options = Options();
  options.scheduler.max_sequences = 2;
  options.scheduler.max_batch_rows = 2;
  Simulation simulation(options);
  simulation.Add(Params(1, 1, 9));
  simulation.Add(Params(2, 1, 9));
  simulation.Step();
  simulation.Add(Params(3, 3, 1, 1));
  EXPECT_THAT(simulation.Step().items,
              ElementsAre(Decode(1, 1), Prompt(3, 0, 1)));
}

TEST(SchedulerTest, NothingStartsInAStepThatHasNoRowForIt) {
  Simulation simulation(Options());
  simulation.Add(Params(1, 20, 1));
  simulation.Add(Params(2, 1, 1));
  simulation.Step();
  simulation.Step();
  EXPECT_EQ(simulation.scheduler().stats().waiting, 1);
  simulation.Step();
  EXPECT_TRUE(simulation.scheduler().idle());
}

TEST(SchedulerTest, AllLogitsChunksObeyTheLogitBudget) {
  SimulationOptions options = Options();
  options.scheduler.max_logit_rows = 4;
  Simulation simulation(options);
  simulation.Add(Params(1, 2, 20));
  simulation.Step();
  SequenceParams all = Params(2, 7, 2);
  all.all_logits = true;
  simulation.Add(all);
  simulation.Add(Params(3, 2, 2));
  // One of four logit rows is the decode row's; none is left for the last
  // token of sequence 3.
  const StepRecord step = simulation.Step();
  EXPECT_THAT(step.items,
              ElementsAre(Decode(1, 2), ItemRecord{2, 0, 3, false, false, true},
                          Prompt(3, 0, 1)));
  EXPECT_EQ(step.logit_rows, 4);
  EXPECT_THAT(
      simulation.Step().items,
      ElementsAre(Decode(1, 3), ItemRecord{2, 3, 3, false, false, true}));
  EXPECT_THAT(simulation.Step().items,
              ElementsAre(Decode(1, 4), ItemRecord{2, 6, 1, false, true, true},
                          Prompt(3, 1, 1, true)));
  // Generated rows give one logit row each.
  EXPECT_EQ(simulation.Step().logit_rows, 3);
}

TEST(SchedulerTest, AllLogitsOfEachPromptRowOnceAfterPreemption) {
  SimulationOptions options = Options();
  options.scheduler.max_sequences = 1;
  Simulation simulation(options);
  SequenceParams all = Params(1, 10, 1);
  all.all_logits = true;
  simulation.Add(all);
  simulation.Step();
  EXPECT_EQ(simulation.Step().logit_rows, 4);
  simulation.Add(Params(2, 1, 1, 1));
  EXPECT_THAT(simulation.Step().preempted, ElementsAre(1));
  EXPECT_THAT(simulation.Step().items, ElementsAre(Prompt(1, 0, 8)));
  EXPECT_THAT(simulation.Step().items,
              ElementsAre(ItemRecord{1, 8, 2, false, true, true}));
  EXPECT_TRUE(simulation.scheduler().idle());
}

TEST(SchedulerTest, CancelFreesPagesAtOnce) {
  Simulation simulation(Options());
  simulation.Add(Params(1, 20, 5));
  simulation.Add(Params(2, 3, 5));
  EXPECT_TRUE(simulation.Cancel(2));
  simulation.Step();
  EXPECT_GT(simulation.scheduler().pool().used(), 0);
  EXPECT_TRUE(simulation.Cancel(1));
  EXPECT_FALSE(simulation.Cancel(1));
  EXPECT_FALSE(simulation.Cancel(77));
  EXPECT_EQ(simulation.scheduler().pool().used(), 0);
  EXPECT_TRUE(simulation.scheduler().idle());
}

TEST(SchedulerTest, CancelDuringAPrefillLetsTheNextOneIn) {
  SimulationOptions options = Options();
  options.scheduler.max_sequences = 1;
  Simulation simulation(options);
  simulation.Add(Params(1, 200, 5));
  simulation.Add(Params(2, 3, 1));
  simulation.Step();
  simulation.Step();
  simulation.Cancel(1);
  EXPECT_THAT(simulation.Step().items, ElementsAre(Prompt(2, 0, 3, true)));
}

TEST(SchedulerTest, CancelBetweenScheduleAndCommit) {
  Simulation simulation(Options());
  simulation.Add(Params(1, 2, 5));
  simulation.Add(Params(2, 2, 5));
  simulation.Add(Params(3, 2, 5));
  // Odd ids still get a sampled token from the simulation, even ones do not.
  EXPECT_THAT(simulation.Step({1, 2}).freed, IsEmpty());
  EXPECT_EQ(simulation.scheduler().stats().running, 1);
  EXPECT_THAT(simulation.Step().items, ElementsAre(Decode(3, 2)));
}

TEST(SchedulerTest, ReusedIdBetweenScheduleAndCommitIsAnotherSequence) {
  Simulation simulation(Options());
  simulation.Add(Params(1, 2, 5));
  const StepRecord step = simulation.StepWith([&] {
    simulation.Cancel(1);
    SequenceParams again = Params(1, 5, 2);
    simulation.Add(again);
  });
  EXPECT_THAT(step.items, ElementsAre(Prompt(1, 0, 2, true)));
  EXPECT_THAT(simulation.Step().items, ElementsAre(Prompt(1, 0, 5, true)));
  simulation.RunUntilIdle(3);
  EXPECT_THAT(simulation.finished().at(1), SizeIs(2));
}

TEST(SchedulerTest, StopRuleFreesTheSequence) {
  Scheduler scheduler(Options().scheduler);
  scheduler.Add(Params(1, 2, 5));
  scheduler.Add(Params(2, 2, 5));
  const StepPlan plan = scheduler.Schedule();
  const std::vector<SampledToken> sampled = {{2, 9, false}, {1, 8, true}};
  EXPECT_THAT(scheduler.Commit(plan, sampled), ElementsAre(1));
  EXPECT_EQ(scheduler.Find(1), nullptr);
  EXPECT_EQ(scheduler.Find(2)->tokens.back(), 9);
}

TEST(SchedulerTest, FiveHundredCancelledLeaveNothing) {
  SimulationOptions options = Options();
  options.scheduler.pages = 1000;  // one each, and one to go on with
  options.scheduler.max_sequences = 500;
  options.scheduler.max_batch_rows = 512;
  options.scheduler.max_logit_rows = 512;
  Simulation simulation(options);
  for (SequenceId id = 1; id <= 500; ++id) simulation.Add(Params(id, 1, 20));
  simulation.Step();
  EXPECT_EQ(simulation.scheduler().stats().running, 500);
  for (SequenceId id = 1; id <= 500; ++id) simulation.Cancel(id);
  const SchedulerStats stats = simulation.scheduler().stats();
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.waiting, 0);
  EXPECT_EQ(stats.waiting_tokens, 0);
  EXPECT_EQ(stats.pages_used, 0);
  simulation.Add(Params(501, 3, 2));
  simulation.RunUntilIdle(5);
}

TEST(SchedulerTest, TenThousandWaiting) {
  SimulationOptions options = Options();
  Scheduler scheduler(options.scheduler);
  for (SequenceId id = 1; id <= 10000; ++id) {
    scheduler.Add(Params(id, 3, 0, static_cast<int32_t>(id % 3)));
  }
  EXPECT_EQ(scheduler.stats().waiting_tokens, 30000);
  for (SequenceId id = 3; id <= 10000; id += 3) {
    ASSERT_TRUE(scheduler.Cancel(id));
  }
  std::vector<SequenceId> order;
  while (!scheduler.idle()) {
    for (const SequenceId id : scheduler.Commit(scheduler.Schedule(), {})) {
      order.push_back(id);
    }
  }
  ASSERT_THAT(order, SizeIs(6667));
  EXPECT_EQ(order.front(), 2u);
  EXPECT_EQ(order.back(), 10000u);
}

TEST(SchedulerTest, CanEverFit) {
  const Scheduler scheduler(Options().scheduler);
  EXPECT_TRUE(scheduler.CanEverFit(256));
  EXPECT_FALSE(scheduler.CanEverFit(257));
  EXPECT_FALSE(scheduler.CanEverFit(int64_t{1} << 40));
}

TEST(SchedulerDeathTest, MisuseIsCaught) {
  SchedulerOptions options = Options().scheduler;
  options.max_batch_rows = options.max_sequences - 1;
  EXPECT_DEATH(Scheduler{options}, "max_batch_rows");
  options = Options().scheduler;
  options.max_logit_rows = options.max_sequences - 1;
  EXPECT_DEATH(Scheduler{options}, "max_logit_rows");
  Scheduler scheduler(Options().scheduler);
  EXPECT_DEATH(scheduler.Add(Params(1, 0, 1)), "prompt");
  EXPECT_DEATH(scheduler.Add(Params(1, 200, 57)), "CanEverFit");
  scheduler.Add(Params(1, 2, 2));
  EXPECT_DEATH(scheduler.Add(Params(1, 2, 2)), "check failed");
  const StepPlan plan = scheduler.Schedule();
  EXPECT_DEATH(scheduler.Schedule(), "pending");
  EXPECT_DEATH(scheduler.Commit(plan, {}), "has_token");
  const std::vector<SampledToken> stranger = {{1, 5, false}, {9, 5, false}};
  EXPECT_DEATH(scheduler.Commit(plan, stranger), "used_samples");
}

}  // namespace
}  // namespace nibble::scheduler
