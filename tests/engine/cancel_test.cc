// Requests that end early: cancelled, late, or with their engine.

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/engine.h"
#include "engine/errors.h"
#include "gtest/gtest.h"
#include "tests/support/scripted.h"

namespace nibble::engine {
namespace {

using nibble::testing::Answer;
using nibble::testing::Ask;
using nibble::testing::CountingObserver;
using nibble::testing::IdsRequest;
using nibble::testing::MakeScriptedEngine;
using nibble::testing::RecordingSink;
using nibble::testing::WaitIdle;
using std::chrono::milliseconds;

std::string Endless(std::string_view more) {
  return absl::StrCat(R"({"vocabulary": ["a"], "ids": [0],)", std::string(more),
                      "}");
}

Request Prompt(int32_t tokens, int32_t max_new) {
  Request request = IdsRequest(std::vector<int32_t>(tokens, 0));
  request.max_new_tokens = max_new;
  return request;
}

void ExpectNothingLive(const EngineSnapshot& snapshot) {
  EXPECT_EQ(snapshot.requests_waiting, 0);
  EXPECT_EQ(snapshot.requests_running, 0);
  EXPECT_EQ(snapshot.scheduler.waiting, 0);
  EXPECT_EQ(snapshot.scheduler.running, 0);
  EXPECT_EQ(snapshot.scheduler.pages_used, 0);
  EXPECT_FALSE(snapshot.has_work);
}

TEST(Cancel, FiveHundredStreamsDroppedAfterTheirFirstTokenLeaveNothing) {
  EngineOptions options;
  options.max_queue = 500;
  CountingObserver observer;
  const auto engine = MakeScriptedEngine(
      Endless(R"("context_length": 50000, "delays": {"step_us": 100})"),
      options, &observer);
  std::vector<std::unique_ptr<RecordingSink>> sinks;
  std::vector<RequestHandle> handles;
  for (int i = 0; i < 500; ++i) {
    sinks.push_back(std::make_unique<RecordingSink>());
    const auto handle = engine->Submit(Prompt(20, 40000), sinks.back().get());
    ASSERT_TRUE(handle.ok()) << handle.status();
    handles.push_back(*handle);
  }
  for (size_t i = 0; i < sinks.size(); ++i) {
    sinks[i]->WaitForDelta();
    engine->Cancel(handles[i]);
  }
  for (const auto& sink : sinks) {
    EXPECT_TRUE(absl::IsCancelled(sink->Wait().status));
  }
  ExpectNothingLive(WaitIdle(*engine));
  EXPECT_EQ(observer.Finished(FinishReason::kCancelled), 500);
  EXPECT_TRUE(Ask(*engine, Prompt(20, 5)).status.ok());
  EXPECT_EQ(observer.received, observer.finished + observer.rejected);
}

// One-token requests that end and are cancelled at the same time.
TEST(Cancel, RacesWithTheEndOfARequestHarmlessly) {
  constexpr int kThreads = 4;
  constexpr int kRequests = 2500;  // of each thread
  CountingObserver observer;
  const auto engine =
      MakeScriptedEngine(Endless(R"("context_length": 64)"), {}, &observer);
  std::atomic<int> ended = 0;
  const auto client = [&](unsigned seed) {
    std::minstd_rand random(seed);
    for (int i = 0; i < kRequests; ++i) {
      RecordingSink sink;
      const auto handle = engine->Submit(Prompt(3, 1), &sink);
      ASSERT_TRUE(handle.ok()) << handle.status();
      const auto wait = std::chrono::microseconds(random() % 60);
      const auto until = Clock::now() + wait;
      while (Clock::now() < until) std::this_thread::yield();
      engine->Cancel(*handle);
      const absl::Status& status = sink.Wait().status;
      ASSERT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
      ASSERT_EQ(sink.text(), status.ok() ? "a" : sink.text());
      ++ended;
    }
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) threads.emplace_back(client, t + 1);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ended, kThreads * kRequests);
  ExpectNothingLive(WaitIdle(*engine));
  EXPECT_EQ(observer.received, kThreads * kRequests);
  EXPECT_EQ(observer.received, observer.finished + observer.rejected);
}

TEST(Cancel, ASinkMayCancelItsOwnRequest) {
  const auto engine = MakeScriptedEngine(
      Endless(R"("context_length": 50000, "delays": {"step_us": 200})"));
  std::atomic<RequestHandle> handle = 0;
  RecordingSink sink;
  sink.on_delta = [&](const Delta&) {
    if (handle != 0) engine->Cancel(handle);
  };
  const auto submitted = engine->Submit(Prompt(3, 40000), &sink);
  ASSERT_TRUE(submitted.ok());
  handle = *submitted;
  EXPECT_TRUE(absl::IsCancelled(sink.Wait().status));
}

TEST(Cancel, TakesEffectBetweenTheChunksOfAPrompt) {
  EngineOptions options;
  options.max_sequences = 1;
  CountingObserver observer;
  std::atomic<RequestHandle> handle = 0;
  std::atomic<int64_t> cancelled_at = 0;
  std::unique_ptr<Engine> engine;
  // 1,000 chunks of 4 tokens; cancelled as soon as two of them are done.
  observer.on_step = [&] {
    if (handle != 0 && cancelled_at == 0 && observer.steps >= 2) {
      cancelled_at = observer.steps.load();
      engine->Cancel(handle);
    }
  };
  engine =
      MakeScriptedEngine(Endless(R"("context_length": 5000, "max_batch_rows": 4,
                 "delays": {"step_us": 2000})"),
                         options, &observer);
  RecordingSink first;
  RecordingSink second;
  int64_t second_started = 0;
  second.on_delta = [&](const Delta&) { second_started = observer.steps; };
  const auto submitted = engine->Submit(Prompt(4000, 1), &first);
  ASSERT_TRUE(submitted.ok());
  ASSERT_TRUE(engine->Submit(Prompt(3, 1), &second).ok());
  handle = *submitted;
  EXPECT_TRUE(absl::IsCancelled(first.Wait().status));
  EXPECT_TRUE(second.Wait().status.ok());
  EXPECT_EQ(second_started, cancelled_at + 1);
}

TEST(Cancel, AWaitingRequestIsCancelledWithoutAPrompt) {
  EngineOptions options;
  options.max_sequences = 1;
  CountingObserver observer;
  const auto engine = MakeScriptedEngine(
      Endless(R"("context_length": 50000, "delays": {"step_us": 500})"),
      options, &observer);
  RecordingSink running;
  RecordingSink waiting;
  const auto first = engine->Submit(Prompt(3, 40000), &running);
  ASSERT_TRUE(first.ok());
  running.WaitForDelta();
  const auto second = engine->Submit(Prompt(3, 1), &waiting);
  ASSERT_TRUE(second.ok());
  engine->Cancel(*second);
  EXPECT_TRUE(absl::IsCancelled(waiting.Wait().status));
  EXPECT_FALSE(waiting.has_prompt());
  EXPECT_EQ(waiting.Wait().usage.generated_tokens, 0);
  engine->Cancel(*first);
  running.Wait();
  // Both were accepted: both are finished, none rejected.
  EXPECT_EQ(observer.Finished(FinishReason::kCancelled), 2);
  EXPECT_EQ(observer.rejected, 0);
}

TEST(Deadline, OfAWaitingRequestPassesWithNothingComputed) {
  EngineOptions options;
  options.max_sequences = 1;
  CountingObserver observer;
  const auto engine = MakeScriptedEngine(
      Endless(R"("context_length": 50000, "delays": {"step_us": 500})"),
      options, &observer);
  RecordingSink running;
  const auto first = engine->Submit(Prompt(3, 40000), &running);
  ASSERT_TRUE(first.ok());
  running.WaitForDelta();
  const int64_t rows = observer.wide_rows;
  Request request = Prompt(7, 1);
  request.deadline = Clock::now() + milliseconds(20);
  const Answer late = Ask(*engine, request);
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.status)) << late.status;
  EXPECT_EQ(observer.wide_rows, rows);
  EXPECT_EQ(observer.Rejected(Rejection::kDeadline), 1);
  engine->Cancel(*first);
  running.Wait();
  EXPECT_EQ(observer.received, observer.finished + observer.rejected);
}

TEST(Deadline, EndsARunningRequest) {
  CountingObserver observer;
  const auto engine = MakeScriptedEngine(
      Endless(R"("context_length": 50000, "delays": {"step_us": 1000})"), {},
      &observer);
  Request request = Prompt(3, 40000);
  request.deadline = Clock::now() + milliseconds(500);
  const Answer answer = Ask(*engine, request);
  EXPECT_TRUE(absl::IsDeadlineExceeded(answer.status));
  EXPECT_FALSE(answer.text().empty());
  EXPECT_EQ(observer.Finished(FinishReason::kDeadline), 1);
  ExpectNothingLive(WaitIdle(*engine));
}

TEST(Deadline, TakesEffectRightAfterASlowStep) {
  CountingObserver observer;
  const auto engine = MakeScriptedEngine(Endless(R"("context_length": 50000,
                 "delays": {"block_at_step": {"step": 1, "ms": 100}})"),
                                         {}, &observer);
  Request request = Prompt(3, 40000);
  request.deadline = Clock::now() + milliseconds(20);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Ask(*engine, request).status));
  EXPECT_LE(observer.steps, 1);
}

TEST(MaxQueue, RefusesWhatWaitsTooLong) {
  EngineOptions options;
  options.max_sequences = 1;
  CountingObserver observer;
  const auto engine = MakeScriptedEngine(
      Endless(R"("context_length": 50000, "delays": {"step_us": 500})"),
      options, &observer);
  RecordingSink running;
  const auto first = engine->Submit(Prompt(3, 40000), &running);
  ASSERT_TRUE(first.ok());
  running.WaitForDelta();
  Request request = Prompt(7, 1);
  request.max_queue = milliseconds(5);
  const Answer late = Ask(*engine, request);
  EXPECT_TRUE(absl::IsResourceExhausted(late.status)) << late.status;
  EXPECT_TRUE(ErrorRetryAfter(late.status).has_value());
  EXPECT_EQ(observer.Rejected(Rejection::kQueueTime), 1);
  engine->Cancel(*first);
  running.Wait();
}

TEST(MaxQueue, OfZeroIsServedByAnIdleEngine) {
  const auto engine = MakeScriptedEngine(Endless(R"("context_length": 64)"));
  for (int i = 0; i < 20; ++i) {
    Request request = Prompt(7, 1);
    request.max_queue = Clock::duration::zero();
    EXPECT_TRUE(Ask(*engine, request).status.ok());
    WaitIdle(*engine);
  }
}

TEST(Shutdown, TellsEverySinkOnce) {
  EngineOptions options;
  options.max_sequences = 2;
  CountingObserver observer;
  std::vector<std::unique_ptr<RecordingSink>> sinks;
  {
    const auto engine = MakeScriptedEngine(
        Endless(R"("context_length": 50000, "delays": {"step_us": 500})"),
        options, &observer);
    for (int i = 0; i < 10; ++i) {
      sinks.push_back(std::make_unique<RecordingSink>());
      ASSERT_TRUE(engine->Submit(Prompt(3, 40000), sinks.back().get()).ok());
    }
  }
  for (const auto& sink : sinks) {
    EXPECT_TRUE(absl::IsCancelled(sink->Wait().status));
  }
  EXPECT_EQ(observer.finished, 10);
}

TEST(Shutdown, CancelAllEndsWhatIsLiveAndNothingLater) {
  const auto engine = MakeScriptedEngine(
      Endless(R"("context_length": 50000, "delays": {"step_us": 500})"));
  RecordingSink before;
  ASSERT_TRUE(engine->Submit(Prompt(3, 40000), &before).ok());
  engine->CancelAll();
  const Answer after = Ask(*engine, Prompt(3, 2));
  EXPECT_TRUE(after.status.ok()) << after.status;
  EXPECT_TRUE(absl::IsCancelled(before.Wait().status));
}

TEST(Health, AStalledStepShowsAndAnIdleEngineDoesNot) {
  const auto engine = MakeScriptedEngine(Endless(R"("context_length": 64,
                 "delays": {"block_at_step": {"step": 2, "ms": 1500}})"));
  EXPECT_FALSE(engine->snapshot().has_work);
  std::this_thread::sleep_for(milliseconds(20));
  RecordingSink sink;
  const Clock::time_point before = Clock::now();
  ASSERT_TRUE(engine->Submit(Prompt(3, 5), &sink).ok());
  // The clock of an engine that was idle starts with its work.
  EXPECT_GE(engine->snapshot().last_step, before);
  sink.WaitForDelta();
  const Clock::time_point stalled = engine->snapshot().last_step;
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_TRUE(engine->snapshot().has_work);
  EXPECT_EQ(engine->snapshot().last_step, stalled);
  EXPECT_TRUE(sink.Wait().status.ok());
  EXPECT_GT(WaitIdle(*engine).last_step, stalled);
}

}  // namespace
}  // namespace nibble::engine
