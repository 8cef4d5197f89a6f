// Admission by pages and preemption.
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

SimulationOptions Options(int32_t pages) {
  SimulationOptions options;
  options.scheduler.max_batch_rows = 16;
  options.scheduler.max_sequences = 4;
  options.scheduler.max_logit_rows = 4;
  options.scheduler.page_size = 4;
  options.scheduler.pages = pages;
  return options;
}

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

std::vector<SequenceId> Ids(const StepRecord& step) {
  std::vector<SequenceId> ids;
  for (const ItemRecord& item : step.items) ids.push_back(item.id);
  return ids;
}

TEST(SchedulerPagesTest, PagesAreTakenAsTokensNeedThem) {
  Simulation simulation(Options(8));
  simulation.Add(Params(1, 4, 20));
  simulation.Step();
  EXPECT_EQ(simulation.scheduler().pool().used(), 1);
  simulation.Step();
  EXPECT_EQ(simulation.scheduler().pool().used(), 2);
  for (int i = 0; i < 3; ++i) simulation.Step();
  EXPECT_EQ(simulation.scheduler().pool().used(), 2);
  simulation.Step();
  EXPECT_EQ(simulation.scheduler().pool().used(), 3);
}

// The last token is never computed, so it needs no room.
TEST(SchedulerPagesTest, ALoneSequenceMayFillThePool) {
  for (const auto& [prompt, generated] :
       std::vector<std::pair<int32_t, int32_t>>{
           {12, 0}, {11, 1}, {8, 4}, {1, 11}}) {
    Simulation simulation(Options(3));
    simulation.Add(Params(1, prompt, generated));
    simulation.RunUntilIdle(20);
    EXPECT_THAT(simulation.finished().at(1), SizeIs(generated));
    EXPECT_EQ(simulation.scheduler().stats().preemptions, 0u);
  }
}

// Public case: two long requests together fill the cache, neither advances.
TEST(SchedulerPagesTest, PoolForOneAndAHalfBothFinish) {
  Simulation simulation(Options(9));  // 36 tokens
  simulation.Add(Params(1, 8, 16));
  simulation.Add(Params(2, 8, 16));
  EXPECT_THAT(Ids(simulation.Step()), ElementsAre(1, 2));
  // The simulation compares each with its solo run.
  simulation.RunUntilIdle(60);
  EXPECT_THAT(simulation.finished(), SizeIs(2));
  // The younger one gave way, once, and not again and again.
  EXPECT_EQ(simulation.scheduler().stats().preemptions, 1u);
}

TEST(SchedulerPagesTest, TheYoungestOfTheLowestPriorityGivesWay) {
  Simulation simulation(Options(6));
  simulation.Add(Params(1, 3, 12));
  simulation.Add(Params(2, 3, 12));
  simulation.Step();
  simulation.Add(Params(3, 3, 12, 1));
  std::vector<SequenceId> preempted;
  for (int i = 0; i < 12; ++i) {
    const StepRecord step = simulation.Step();
    preempted.insert(preempted.end(), step.preempted.begin(),
                     step.preempted.end());
  }
  EXPECT_THAT(preempted, ElementsAre(2, 1));
  simulation.RunUntilIdle(60);
}

TEST(SchedulerPagesTest, AdmissionLeavesTheRunningTheirNextPages) {
  Simulation simulation(Options(6));
  simulation.Add(Params(1, 4, 9));  // 1 page now, at most 3
  simulation.Step();
  // Two pages stay for sequence 1's known tokens and its next page, so a
  // sequence that wants four pages must wait, one that wants three need not.
  simulation.Add(Params(2, 13, 0));
  EXPECT_THAT(Ids(simulation.Step()), ElementsAre(1));
  simulation.Cancel(2);
  simulation.Add(Params(3, 12, 0));
  EXPECT_THAT(Ids(simulation.Step()), ElementsAre(1, 3));
  simulation.RunUntilIdle(20);
  EXPECT_EQ(simulation.scheduler().stats().preemptions, 0u);
}

TEST(SchedulerPagesTest, SequencesThatStartTogetherLeaveRoomForEachOther) {
  Simulation simulation(Options(6));
  simulation.Add(Params(1, 4, 9));   // two pages
  simulation.Add(Params(2, 17, 0));  // five
  EXPECT_THAT(Ids(simulation.Step()), ElementsAre(1));
  simulation.RunUntilIdle(20);
  EXPECT_EQ(simulation.scheduler().stats().preemptions, 0u);
}

TEST(SchedulerPagesTest, APreemptedSequenceLeavesItsReserveToo) {
  SimulationOptions options = Options(8);
  options.scheduler.max_batch_rows = 64;
  Simulation simulation(options);
  simulation.Add(Params(1, 4, 9));  // one page, and two in reserve
  simulation.Step();
  simulation.Add(Params(2, 24, 0, 1));  // six pages
  simulation.Add(Params(3, 8, 0, 1));   // two
  const StepRecord step = simulation.Step();
  EXPECT_THAT(step.preempted, ElementsAre(1));
  EXPECT_THAT(Ids(step), ElementsAre(2, 3));
}

TEST(SchedulerPagesTest, NothingOvertakesTheHeadOfTheQueue) {
  Simulation simulation(Options(6));
  simulation.Add(Params(1, 8, 9));
  simulation.Step();
  simulation.Add(Params(2, 20, 0));  // large: waits for sequence 1
  simulation.Add(Params(3, 1, 0));
  while (simulation.live().contains(1)) {
    EXPECT_THAT(Ids(simulation.Step()), ElementsAre(1));
  }
  EXPECT_THAT(Ids(simulation.Step()), ElementsAre(2));
  EXPECT_THAT(Ids(simulation.Step()), ElementsAre(2, 3));
}

TEST(SchedulerPagesTest, HigherPriorityPreemptsForPagesOnlyWhenThatHelps) {
  Simulation simulation(Options(6));
  simulation.Add(Params(1, 7, 5, 1));
  simulation.Add(Params(2, 7, 5, 0));
  simulation.Step();
  // Preempting sequence 2 would not make room for five pages: it stays.
  simulation.Add(Params(3, 20, 0, 1));
  const StepRecord vain = simulation.Step();
  EXPECT_THAT(vain.preempted, IsEmpty());
  EXPECT_THAT(Ids(vain), ElementsAre(1, 2));
  simulation.Cancel(3);
  // It does for three.
  simulation.Add(Params(4, 12, 0, 1));
  const StepRecord step = simulation.Step();
  EXPECT_THAT(step.preempted, ElementsAre(2));
  EXPECT_THAT(Ids(step), ElementsAre(1, 4));
  simulation.RunUntilIdle(30);
}

TEST(SchedulerPagesTest, PagesThatStayWithAnotherOwnerMakeNoRoom) {
  Simulation simulation(Options(6));
  SequenceParams shared = Params(1, 9, 3, 1);  // three pages, to the end
  simulation.Add(shared);
  simulation.Step();
  shared.id = 2;
  shared.priority = 0;
  simulation.Add(shared);
  simulation.Step();
  EXPECT_EQ(simulation.scheduler().pool().available(), 2);
  // Sequence 2 has three pages, but two of them are sequence 1's too.
  simulation.Add(Params(3, 16, 0, 1));
  EXPECT_THAT(simulation.Step().preempted, IsEmpty());
  simulation.RunUntilIdle(20);
}

TEST(SchedulerPagesTest, APreemptedSequenceIsComputedInChunks) {
  SimulationOptions options = Options(8);
  options.scheduler.max_sequences = 1;
  options.scheduler.max_batch_rows = 4;
  options.scheduler.prefix_cache = false;
  Simulation simulation(options);
  simulation.Add(Params(1, 6, 20));
  for (int i = 0; i < 8; ++i) simulation.Step();  // 6 + 6 computed, 7 sampled
  simulation.Add(Params(2, 1, 1, 1));
  EXPECT_THAT(simulation.Step().preempted, ElementsAre(1));
  EXPECT_THAT(simulation.Step().items,
              ElementsAre(ItemRecord{1, 0, 4, false, false, false}));
  EXPECT_THAT(simulation.Step().items,
              ElementsAre(ItemRecord{1, 4, 2, false, false, false}));
  EXPECT_THAT(simulation.Step().items,
              ElementsAre(ItemRecord{1, 6, 4, true, false, false}));
  EXPECT_THAT(simulation.Step().items,
              ElementsAre(ItemRecord{1, 10, 3, true, true, false}));
  EXPECT_EQ(simulation.scheduler().stats().recomputed_tokens, 12u);
  simulation.RunUntilIdle(30);
}

TEST(SchedulerPagesTest, ALongPromptIsNotStarvedByDecodersThatFillTheStep) {
  SimulationOptions options = Options(16);
  options.scheduler.max_sequences = 2;
  options.scheduler.max_batch_rows = 2;
  Simulation simulation(options);
  simulation.Add(Params(1, 1, 30));
  simulation.Add(Params(2, 20, 1));
  for (int i = 0; i < 21; ++i) simulation.Step();
  EXPECT_THAT(simulation.finished(), SizeIs(1));
  EXPECT_TRUE(simulation.finished().contains(2));
}

}  // namespace
}  // namespace nibble::scheduler
