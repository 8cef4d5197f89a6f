// Which requests an engine takes, and what it answers to the others.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "engine/engine.h"
#include "engine/errors.h"
#include "engine/scripted_model.h"
#include "gmock/gmock.h"
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
using nibble::testing::TextRequest;
using nibble::testing::TokensScript;
using nibble::testing::WaitIdle;

// "a" for ever, EOS never.
std::string Endless(std::string_view more) {
  return absl::StrCat(
      R"({"vocabulary": ["a", {"text": "<eos>", "eos": true}],
          "ids": [0], "then": "repeat", )",
      std::string(more), "}");
}

Request Prompt(int32_t tokens, std::optional<int32_t> max_new) {
  Request request = IdsRequest(std::vector<int32_t>(tokens, 0));
  request.max_new_tokens = max_new;
  return request;
}

TEST(Limits, APromptThatLeavesNoRoomIsRefusedWithBothNumbers) {
  CountingObserver observer;
  const auto engine =
      MakeScriptedEngine(Endless(R"("context_length": 64)"), {}, &observer);
  for (const int32_t tokens : {64, 65, 1000}) {
    const Answer answer = Ask(*engine, Prompt(tokens, std::nullopt));
    EXPECT_EQ(answer.status.code(), absl::StatusCode::kInvalidArgument);
    const std::string message(answer.status.message());
    EXPECT_NE(message.find(absl::StrCat("n_prompt = ", tokens)),
              std::string::npos);
    EXPECT_NE(message.find("n_ctx = 64"), std::string::npos);
    EXPECT_FALSE(answer.sink->has_prompt());
  }
  EXPECT_EQ(observer.Rejected(Rejection::kTooLong), 3);
  // A full context is enough when nothing is to be generated.
  EXPECT_TRUE(Ask(*engine, Prompt(64, 0)).status.ok());
  EXPECT_FALSE(Ask(*engine, Prompt(65, 0)).status.ok());
}

TEST(Limits, AnOutputEndsWhereItsContextIsFull) {
  const auto engine = MakeScriptedEngine(Endless(R"("context_length": 64)"));
  for (const std::optional<int32_t> max_new :
       {std::optional<int32_t>(), std::optional<int32_t>(1000)}) {
    const Answer answer = Ask(*engine, Prompt(61, max_new));
    ASSERT_TRUE(answer.status.ok());
    EXPECT_EQ(answer.text(), "aaa");
    EXPECT_EQ(answer.sink->reason(), FinishReason::kContextFull);
  }
  const Answer exact = Ask(*engine, Prompt(61, 3));
  EXPECT_EQ(exact.sink->reason(), FinishReason::kLength);
}

TEST(Limits, TheServersContextLimitCounts) {
  EngineOptions options;
  options.max_context = 8;
  const auto engine =
      MakeScriptedEngine(Endless(R"("context_length": 64)"), options);
  EXPECT_EQ(engine->max_context(), 8);
  EXPECT_FALSE(Ask(*engine, Prompt(8, 1)).status.ok());
  EXPECT_EQ(Ask(*engine, Prompt(6, std::nullopt)).text(), "aa");
}

TEST(Limits, MaxNewTokensIsExactAlsoForZero) {
  const auto engine = MakeScriptedEngine(Endless(R"("context_length": 64)"));
  for (const int32_t max_new : {0, 1, 2}) {
    const Answer answer = Ask(*engine, Prompt(5, max_new));
    ASSERT_TRUE(answer.status.ok());
    const OutputFinish& finish = *answer.sink->output().finish;
    EXPECT_EQ(finish.usage.generated_tokens, max_new);
    EXPECT_EQ(finish.usage.prompt_tokens, 5);
    EXPECT_EQ(finish.reason, FinishReason::kLength);
    EXPECT_EQ(answer.text(), std::string(max_new, 'a'));
  }
}

TEST(Limits, TheDefaultLengthIsTheServers) {
  EngineOptions options;
  options.default_max_new_tokens = 7;
  const auto engine =
      MakeScriptedEngine(Endless(R"("context_length": 64)"), options);
  const Answer answer = Ask(*engine, Prompt(5, std::nullopt));
  EXPECT_EQ(answer.text(), "aaaaaaa");
  EXPECT_EQ(answer.sink->reason(), FinishReason::kLength);
}

TEST(Limits, WhatCanNeverFitThePoolIsRefusedAtOnce) {
  CountingObserver observer;
  const auto engine = MakeScriptedEngine(
      Endless(R"("context_length": 1000, "pages": 4, "page_size": 4)"), {},
      &observer);
  const Answer never = Ask(*engine, Prompt(10, 100));
  EXPECT_EQ(never.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(observer.Rejected(Rejection::kNeverFits), 1);
  EXPECT_EQ(Ask(*engine, Prompt(20, 1)).status.code(),
            absl::StatusCode::kFailedPrecondition);
  // Without a wish it gets what the pool holds, to the last token.
  const Answer fits = Ask(*engine, Prompt(10, std::nullopt));
  ASSERT_TRUE(fits.status.ok());
  EXPECT_EQ(fits.text(), "aaaaaa");
  EXPECT_EQ(fits.sink->reason(), FinishReason::kContextFull);
}

TEST(Limits, AnEmptyPromptIsBosOrRefused) {
  const auto without = MakeScriptedEngine(Endless(R"("context_length": 9)"));
  EXPECT_EQ(Ask(*without, TextRequest("")).status.code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Ask(*without, IdsRequest({})).status.code(),
            absl::StatusCode::kInvalidArgument);
  Request chat = IdsRequest({});
  chat.prompt = ChatPrompt{};
  EXPECT_EQ(Ask(*without, chat).status.code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Ask(*without, TextRequest("aa")).status.ok());

  const auto with = MakeScriptedEngine(R"({
    "vocabulary": ["a", {"text": "<eos>", "eos": true},
                   {"text": "<bos>", "bos": true}], "ids": [0]})");
  for (const Request& request : {TextRequest(""), IdsRequest({})}) {
    const Answer answer = Ask(*with, request);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.sink->prompt().prompt_tokens, 1);
  }
  Request bare = TextRequest("");
  bare.prompt = TextPrompt{"", false, false};
  EXPECT_EQ(Ask(*with, bare).status.code(), absl::StatusCode::kInvalidArgument);
}

TEST(Limits, BosIsPutFirstOnceAndOnlyWhenWanted) {
  constexpr char kScript[] = R"({
    "vocabulary": ["a", {"text": "<eos>", "eos": true},
                   {"text": "<bos>", "bos": true}], "ids": [0], "add_bos": )";
  for (const bool adds : {false, true}) {
    const auto engine =
        MakeScriptedEngine(absl::StrCat(kScript, adds ? "true" : "false", "}"));
    const auto tokens = [&](std::string text, std::optional<bool> add_bos) {
      Request request = TextRequest("");
      request.prompt = TextPrompt{std::move(text), true, add_bos};
      const Answer answer = Ask(*engine, std::move(request));
      EXPECT_TRUE(answer.status.ok()) << answer.status;
      return answer.sink->prompt().prompt_tokens;
    };
    EXPECT_EQ(tokens("aa", std::nullopt), adds ? 3 : 2);
    EXPECT_EQ(tokens("aa", true), 3);
    EXPECT_EQ(tokens("aa", false), 2);
    EXPECT_EQ(tokens("<bos>aa", true), 3);
  }
  const auto without = MakeScriptedEngine(Endless(R"("context_length": 9)"));
  Request request = TextRequest("");
  request.prompt = TextPrompt{"a", false, true};
  EXPECT_EQ(ErrorField(Ask(*without, request).status), "add_bos");
}

TEST(Limits, PromptBytesAreLimitedBeforeTokenizing) {
  EngineOptions options;
  options.max_prompt_bytes = 1000;
  CountingObserver observer;
  const auto engine =
      MakeScriptedEngine(Endless(R"("context_length": 9)"), options, &observer);
  const Answer answer = Ask(*engine, TextRequest(std::string(1001, '\n')));
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorField(answer.status), "text");
  EXPECT_EQ(observer.Rejected(Rejection::kTooLong), 1);
}

TEST(Limits, TextThatIsNotUtf8IsRefused) {
  const auto engine = MakeScriptedEngine(Endless(R"("context_length": 9)"));
  const Answer answer = Ask(*engine, TextRequest("a\xFF"));
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorField(answer.status), "text");
}

TEST(Limits, OneRunsTwoWaitAndTheOthersAreRefusedAtOnce) {
  EngineOptions options;
  options.max_sequences = 1;
  options.max_queue = 2;
  CountingObserver observer;
  const auto engine = MakeScriptedEngine(
      Endless(R"("context_length": 5000, "delays": {"step_us": 20000})"),
      options, &observer);
  std::vector<std::unique_ptr<RecordingSink>> sinks;
  int accepted = 0;
  for (int i = 0; i < 10; ++i) {
    sinks.push_back(std::make_unique<RecordingSink>());
    const auto handle = engine->Submit(Prompt(5, 4000), sinks.back().get());
    if (handle.ok()) {
      ++accepted;
      continue;
    }
    sinks.pop_back();
    EXPECT_EQ(handle.status().code(), absl::StatusCode::kResourceExhausted);
    ASSERT_TRUE(ErrorRetryAfter(handle.status()).has_value());
    EXPECT_GT(ErrorRetryAfter(handle.status())->count(), 0);
  }
  EXPECT_EQ(accepted, 3);
  EXPECT_EQ(observer.Rejected(Rejection::kQueueFull), 7);
  sinks[0]->WaitForDelta();
  EXPECT_EQ(engine->snapshot().requests_running, 1);
  EXPECT_EQ(engine->snapshot().requests_waiting, 2);
  engine->CancelAll();
  for (const auto& sink : sinks) {
    EXPECT_TRUE(absl::IsCancelled(sink->Wait().status));
  }
}

TEST(Limits, WaitingPromptTokensAreLimited) {
  EngineOptions options;
  options.max_sequences = 1;
  options.max_queue_tokens = 30;
  CountingObserver observer;
  const auto engine = MakeScriptedEngine(
      Endless(R"("context_length": 5000, "delays": {"step_us": 5000})"),
      options, &observer);
  RecordingSink running;
  const auto handle = engine->Submit(Prompt(50, 4000), &running);
  ASSERT_TRUE(handle.ok());
  running.WaitForDelta();
  RecordingSink first;
  RecordingSink second;
  RecordingSink third;
  EXPECT_TRUE(engine->Submit(Prompt(20, 1), &first).ok());
  EXPECT_EQ(engine->Submit(Prompt(11, 1), &second).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(observer.Rejected(Rejection::kQueueTokens), 1);
  EXPECT_TRUE(engine->Submit(Prompt(10, 1), &third).ok());
  engine->Cancel(*handle);
  running.Wait();
  EXPECT_TRUE(first.Wait().status.ok());
  EXPECT_TRUE(third.Wait().status.ok());
}

TEST(Limits, ADrainingEngineFinishesWhatRunsAndTakesNothingNew) {
  CountingObserver observer;
  const auto engine = MakeScriptedEngine(
      Endless(R"("context_length": 64, "delays": {"step_us": 2000})"), {},
      &observer);
  RecordingSink running;
  ASSERT_TRUE(engine->Submit(Prompt(5, 20), &running).ok());
  running.WaitForDelta();
  engine->Drain();
  EXPECT_TRUE(engine->snapshot().draining);
  const Answer refused = Ask(*engine, Prompt(5, 1));
  EXPECT_TRUE(absl::IsUnavailable(refused.status));
  EXPECT_EQ(observer.Rejected(Rejection::kDraining), 1);
  EXPECT_TRUE(running.Wait().status.ok());
  EXPECT_EQ(running.text(), std::string(20, 'a'));
}

TEST(Limits, ALiveIdIsRefusedAndFreeAgainOnceItsRequestHasEnded) {
  CountingObserver observer;
  const auto engine = MakeScriptedEngine(
      Endless(R"("context_length": 5000, "delays": {"step_us": 1000})"), {},
      &observer);
  Request request = Prompt(5, 4000);
  request.id = "x";
  RecordingSink first;
  const auto old_handle = engine->Submit(request, &first);
  ASSERT_TRUE(old_handle.ok());
  RecordingSink second;
  EXPECT_TRUE(absl::IsAlreadyExists(engine->Submit(request, &second).status()));
  EXPECT_EQ(observer.Rejected(Rejection::kDuplicateId), 1);
  engine->Cancel(*old_handle);
  EXPECT_TRUE(absl::IsCancelled(first.Wait().status));
  // The id names a new request now; the old handle does nothing to it.
  RecordingSink third;
  request.max_new_tokens = 10;
  ASSERT_TRUE(engine->Submit(request, &third).ok());
  engine->Cancel(*old_handle);
  EXPECT_TRUE(third.Wait().status.ok());
  EXPECT_EQ(third.text(), std::string(10, 'a'));
}

TEST(Limits, EveryRequestReceivedIsFinishedOrRejectedOnce) {
  CountingObserver observer;
  const auto engine =
      MakeScriptedEngine(Endless(R"("context_length": 64)"), {}, &observer);
  EXPECT_TRUE(Ask(*engine, Prompt(5, 3)).status.ok());
  Request several = Prompt(5, 3);
  several.n = 4;
  EXPECT_TRUE(Ask(*engine, several).status.ok());
  EXPECT_FALSE(Ask(*engine, Prompt(100, 3)).status.ok());
  Request late = Prompt(5, 3);
  late.deadline = Clock::now();
  EXPECT_TRUE(absl::IsDeadlineExceeded(Ask(*engine, late).status));
  EXPECT_EQ(observer.received, 4);
  EXPECT_EQ(observer.finished, 2);
  EXPECT_EQ(observer.rejected, 2);
  EXPECT_EQ(observer.Rejected(Rejection::kDeadline), 1);
  EXPECT_EQ(observer.generated_tokens, 15);
  EXPECT_EQ(observer.first_tokens, 2);
  EXPECT_EQ(observer.inter_tokens, 10);
}

TEST(Limits, OptionsThatCannotWorkAreRefusedByName) {
  const auto problem = [](EngineOptions options) {
    auto runner = ParseScriptedModel(
        Endless(R"("context_length": 64, "max_batch_rows": 100)"), "test", {});
    NIBBLE_CHECK(runner.ok());
    return std::string(Engine::Create(options, *std::move(runner), nullptr)
                           .status()
                           .message());
  };
  using ::testing::HasSubstr;
  EngineOptions options;
  options.max_sequences = 0;
  EXPECT_THAT(problem(options), HasSubstr("max_sequences 0"));
  options.max_sequences = 101;
  EXPECT_THAT(problem(options), HasSubstr("max_sequences 101"));
  options = {};
  options.max_queue = -1;
  EXPECT_THAT(problem(options), HasSubstr("max_queue -1"));
  options = {};
  options.max_context = -1;
  EXPECT_THAT(problem(options), HasSubstr("max_context -1"));
  options = {};
  options.default_max_new_tokens = 0;
  EXPECT_THAT(problem(options), HasSubstr("default_max_new_tokens 0"));
}

}  // namespace
}  // namespace nibble::engine
