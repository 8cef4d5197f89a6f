// What an answer holds beside its text: several outputs, logprobs, the
// prompt, counts and times.

#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/engine.h"
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

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// 26 letters whose logits depend on the whole prefix.
std::string Letters(std::string_view more) {
  std::string json = R"({"vocabulary": [)";
  for (char c = 'a'; c <= 'z'; ++c)
    absl::StrAppend(&json, "\"", std::string(1, c), "\",");
  return absl::StrCat(json, R"({"text": "<eos>", "eos": true}], "hash": {},)",
                      R"("context_length": 512, )", std::string(more), "}");
}

std::vector<int32_t> Range(int32_t count) {
  std::vector<int32_t> ids(count);
  for (int32_t i = 0; i < count; ++i) ids[i] = (i * 7) % 26;
  return ids;
}

TEST(Outputs, EachOfSeveralIsThatOfItsOwnSeed) {
  for (const bool cache : {true, false}) {
    EngineOptions options;
    options.prefix_cache = cache;
    const auto engine =
        MakeScriptedEngine(Letters(R"("page_size": 4)"), options);
    Request request = IdsRequest(Range(30));
    request.sampling.temperature = 1;
    request.sampling.seed = 41;
    request.max_new_tokens = 12;
    request.n = 3;
    const Answer several = Ask(*engine, request);
    ASSERT_TRUE(several.status.ok()) << several.status;
    for (int32_t i = 0; i < 3; ++i) {
      const OutputFinish& finish = *several.sink->output(i).finish;
      EXPECT_EQ(finish.seed, 41u + i);
      EXPECT_EQ(finish.usage.generated_tokens, 12);
      EXPECT_EQ(finish.usage.prompt_tokens, 30);
      // Further outputs find the prompt in the cache: its 7 full pages.
      EXPECT_EQ(finish.usage.cached_tokens, cache && i > 0 ? 28 : 0);
      Request alone = request;
      alone.id = absl::StrCat("alone-", i);
      alone.n = 1;
      alone.sampling.seed = 41 + i;
      EXPECT_EQ(Ask(*engine, alone).text(), several.text(i));
    }
    EXPECT_NE(several.text(0), several.text(1));
    const Usage total = several.sink->Wait().usage;
    EXPECT_EQ(total.prompt_tokens, 30);
    EXPECT_EQ(total.generated_tokens, 36);
  }
}

TEST(Outputs, SeveralOfNothingAndOfOneTokenEndToo) {
  const auto engine = MakeScriptedEngine(Letters(R"("page_size": 4)"));
  for (const int32_t max_new : {0, 1}) {
    Request request = IdsRequest(Range(5));
    request.max_new_tokens = max_new;
    request.n = 4;
    request.output.echo = true;
    const Answer answer = Ask(*engine, request);
    ASSERT_TRUE(answer.status.ok());
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(answer.sink->reason(i), FinishReason::kLength);
      EXPECT_EQ(answer.text(i).substr(0, 5), "ahovc");
      EXPECT_EQ(answer.text(i).size(), 5u + max_new);
    }
  }
}

TEST(Outputs, LogprobsAreThoseOfTheRawLogits) {
  const auto engine = MakeScriptedEngine(R"({
    "vocabulary": ["a", "b", "c", "d"], "default_logit": "-inf",
    "logits": [[1, 2, 3]]})");
  Request request = IdsRequest({0});
  request.max_new_tokens = 1;
  request.output.logprobs = 4;
  // A bias that decides does not change the logprobs.
  request.sampling.logit_bias = {{0, 50.0f}, {3, 1e38f}};
  const Answer answer = Ask(*engine, request);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  ASSERT_EQ(answer.sink->output().tokens.size(), 1u);
  const OutputToken& token = answer.sink->output().tokens[0];
  const double sum = std::exp(1.0) + std::exp(2.0) + std::exp(3.0);
  EXPECT_EQ(token.id, 0);
  EXPECT_NEAR(token.logprob->logprob, 1 - std::log(sum), 1e-6);
  EXPECT_EQ(token.logprob->rank, 3);
  ASSERT_EQ(token.top.size(), 4u);
  EXPECT_EQ(token.top[0].id, 2);
  EXPECT_NEAR(token.top[0].logprob, 3 - std::log(sum), 1e-6);
  // A token that cannot be: minus infinity is a legal logprob.
  EXPECT_EQ(token.top[3].id, 3);
  EXPECT_EQ(token.top[3].logprob, -kInfinity);
}

TEST(Outputs, BelowTheGreedyTemperatureTheBestTokenIsAlwaysChosen) {
  const auto engine = MakeScriptedEngine(R"({
    "vocabulary": ["a", "b", "c"], "logits": [[1, 2, 3]]})");
  for (const float temperature : {0.0f, 1e-6f}) {
    Request request = IdsRequest({0});
    request.max_new_tokens = 8;
    request.sampling.temperature = temperature;
    request.sampling.top_p = 0.1f;
    request.sampling.seed = 5;
    EXPECT_EQ(Ask(*engine, request).text(), "cccccccc");
  }
  const auto masked = MakeScriptedEngine(R"({
    "vocabulary": ["a", "b", "c"], "default_logit": "-inf",
    "logits": [{"b": -5}]})");
  for (const float temperature : {0.0f, 1e-4f, 1.0f}) {
    Request request = IdsRequest({0});
    request.max_new_tokens = 3;
    request.sampling.temperature = temperature;
    EXPECT_EQ(Ask(*masked, request).text(), "bbb");
  }
}

TEST(Outputs, LogitsThatAreNotFiniteFailTheirRequestAlone) {
  CountingObserver observer;
  const auto engine = MakeScriptedEngine(
      R"({"vocabulary": ["a", "b", "n", "i", "m"],
          "scripts": [
            {"when": {"prompt_begins": "n"},
             "logits": [[1, 2], [1, "nan"]]},
            {"when": {"prompt_begins": "i"}, "logits": [["inf", 1]]},
            {"when": {"prompt_begins": "m"},
             "logits": [["-inf", "-inf", "-inf", "-inf", "-inf"]]},
            {"ids": ["a", "b"], "then": "repeat"}],
          "delays": {"step_us": 500}})",
      {}, &observer);
  RecordingSink healthy;
  Request good = TextRequest("ab");
  good.max_new_tokens = 600;
  ASSERT_TRUE(engine->Submit(good, &healthy).ok());
  healthy.WaitForDelta();
  for (const char* prompt : {"n", "i", "m"}) {
    Request request = TextRequest(prompt);
    request.max_new_tokens = 5;
    const Answer answer = Ask(*engine, request);
    EXPECT_EQ(answer.status.code(), absl::StatusCode::kInternal) << prompt;
  }
  EXPECT_TRUE(healthy.Wait().status.ok());
  EXPECT_EQ(healthy.text().size(), 600u);
  EXPECT_EQ(observer.Finished(FinishReason::kError), 3);
  EXPECT_EQ(engine->snapshot().scheduler.pages_used, 0);
}

TEST(Outputs, ANonFiniteLogitEndsAllOutputsOfItsRequest) {
  const auto engine = MakeScriptedEngine(R"({
    "vocabulary": ["a", "b"], "logits": [[1, 2], [2, 1], ["nan", 1]]})");
  Request request = IdsRequest({0, 1});
  request.n = 4;
  request.max_new_tokens = 10;
  EXPECT_EQ(Ask(*engine, request).status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(nibble::testing::WaitIdle(*engine).scheduler.pages_used, 0);
}

struct PromptLogprobs {
  std::vector<float> logprobs;
  PromptInfo prompt;
  std::string text;
  Usage usage;
};

PromptLogprobs AskPromptLogprobs(Engine& engine, int32_t max_new) {
  Request request = IdsRequest(Range(37));
  request.max_new_tokens = max_new;
  request.output.prompt_logprobs = 2;
  const Answer answer = Ask(engine, request);
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  PromptLogprobs result{{},
                        answer.sink->prompt(),
                        answer.text(),
                        answer.sink->output().finish->usage};
  for (const OutputToken& token : result.prompt.tokens) {
    if (token.logprob) result.logprobs.push_back(token.logprob->logprob);
  }
  return result;
}

TEST(Outputs, PromptLogprobsCoverEveryTokenButTheFirst) {
  EngineOptions options;
  options.max_sequences = 4;
  const auto chunked = MakeScriptedEngine(
      Letters(R"("page_size": 4, "max_batch_rows": 4)"), options);
  const auto whole = MakeScriptedEngine(Letters(R"("page_size": 16)"));
  const PromptLogprobs expected = AskPromptLogprobs(*whole, 3);
  ASSERT_EQ(expected.prompt.tokens.size(), 37u);
  EXPECT_FALSE(expected.prompt.tokens[0].logprob.has_value());
  ASSERT_EQ(expected.logprobs.size(), 36u);
  for (size_t i = 1; i < 37; ++i) {
    const OutputToken& token = expected.prompt.tokens[i];
    EXPECT_EQ(token.id, Range(37)[i]);
    EXPECT_EQ(token.logprob->id, token.id);
    EXPECT_LE(token.logprob->logprob, token.top[0].logprob);
    EXPECT_EQ(token.top.size(), 2u);
  }
  // Twice, in chunks of four, with a prefix cache that is not to be used.
  for (int i = 0; i < 2; ++i) {
    const PromptLogprobs got = AskPromptLogprobs(*chunked, 3);
    EXPECT_EQ(got.logprobs, expected.logprobs);
    EXPECT_EQ(got.text, expected.text);
    EXPECT_EQ(got.usage.cached_tokens, 0);
  }
  EXPECT_EQ(AskPromptLogprobs(*chunked, 0).logprobs, expected.logprobs);
}

TEST(Outputs, APromptOfOneTokenHasNoLogprobs) {
  const auto engine = MakeScriptedEngine(Letters(R"("page_size": 4)"));
  for (const int32_t max_new : {0, 2}) {
    Request request = IdsRequest({3});
    request.max_new_tokens = max_new;
    request.output.prompt_logprobs = 0;
    const Answer answer = Ask(*engine, request);
    ASSERT_TRUE(answer.status.ok());
    ASSERT_EQ(answer.sink->prompt().tokens.size(), 1u);
    EXPECT_FALSE(answer.sink->prompt().tokens[0].logprob.has_value());
  }
}

TEST(Outputs, EchoPutsThePromptsTextFirst) {
  const auto engine = MakeScriptedEngine(Letters(R"("page_size": 4)"));
  Request request = TextRequest("hello");
  request.max_new_tokens = 4;
  const std::string plain = Ask(*engine, request).text();
  request.id = "echo";
  request.output.echo = true;
  request.output.token_ids = true;
  const Answer answer = Ask(*engine, request);
  EXPECT_EQ(answer.text(), "hello" + plain);
  EXPECT_EQ(answer.sink->prompt().echo, "hello");
  ASSERT_EQ(answer.sink->prompt().tokens.size(), 5u);
  EXPECT_EQ(answer.sink->prompt().tokens[0].bytes, "h");
  EXPECT_EQ(answer.sink->ids().size(), 4u);
  // A stop string is not looked for in the prompt.
  request.id = "stop";
  request.stop.strings = {"hello"};
  EXPECT_EQ(Ask(*engine, request).text(), "hello" + plain);
}

TEST(Outputs, RowsAndTimesAddUp) {
  CountingObserver observer;
  const auto engine = MakeScriptedEngine(
      Letters(R"("page_size": 4, "delays": {"prefill_us_per_token": 1000,
                                            "step_us": 1000})"),
      {}, &observer);
  Request request = IdsRequest(Range(20));
  request.max_new_tokens = 5;
  const Answer answer = Ask(*engine, request);
  ASSERT_TRUE(answer.status.ok());
  const Timings& t = answer.sink->output().finish->timings;
  EXPECT_EQ(t.wide_rows, 20);
  EXPECT_EQ(t.narrow_rows, 4);  // the last token is never computed
  EXPECT_EQ(observer.wide_rows, 20);
  EXPECT_EQ(observer.narrow_rows, 4);
  EXPECT_GE(t.prefill, std::chrono::milliseconds(20));
  EXPECT_GE(t.decode, std::chrono::milliseconds(4));
  EXPECT_EQ(t.queue + t.prefill, t.first_token);
  EXPECT_EQ(observer.first_tokens, 1);
  EXPECT_EQ(observer.inter_tokens, 4);
}

TEST(Outputs, CachedPromptTokensAreCounted) {
  const auto engine = MakeScriptedEngine(Letters(R"("page_size": 4)"));
  Request request = IdsRequest(Range(21));
  request.max_new_tokens = 3;
  EXPECT_EQ(Ask(*engine, request).sink->output().finish->usage.cached_tokens,
            0);
  request.id = "again";
  const Answer again = Ask(*engine, request);
  EXPECT_EQ(again.sink->output().finish->usage.cached_tokens, 20);
  EXPECT_EQ(again.sink->output().finish->timings.wide_rows, 1);
  request.id = "salted";
  request.cache_salt = "mine";
  EXPECT_EQ(Ask(*engine, request).sink->output().finish->usage.cached_tokens,
            0);
}

}  // namespace
}  // namespace nibble::engine
