// What a request gets does not depend on what else the engine does. The
// scripted hash model reads its prefix through the pages, so a wrong page, a
// wrong slot or a wrong path changes the text.

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <tuple>
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
using nibble::testing::EnginePlug;
using nibble::testing::IdsRequest;
using nibble::testing::MakeScriptedEngine;
using nibble::testing::RecordingSink;
using nibble::testing::WaitIdle;

constexpr int kVocabulary = 40;

std::string HashScript(std::string_view more) {
  std::string json = R"({"vocabulary": [)";
  for (int i = 0; i < kVocabulary; ++i) {
    absl::StrAppend(&json, "\"", i, ".\",");
  }
  return absl::StrCat(json, R"({"text": "<eos>", "eos": true}],)",
                      R"("context_length": 200, "hash": {"eos_period": 60})",
                      std::string(more), "}");
}

// The same random logits whatever the prefix: temperature decides.
std::string LogitsScript(std::string_view more) {
  std::mt19937 random(11);
  std::string rows;
  for (int step = 0; step < 50; ++step) {
    absl::StrAppend(&rows, step == 0 ? "[" : ",[");
    for (int i = 0; i < kVocabulary; ++i) {
      absl::StrAppend(&rows, i == 0 ? "" : ",", random() % 400, "e-2");
    }
    absl::StrAppend(&rows, "]");
  }
  std::string json = HashScript(more);
  const std::string hash = R"("hash": {"eos_period": 60})";
  return json.replace(json.find(hash), hash.size(),
                      absl::StrCat("\"logits\": [", rows, "]"));
}

// Prompts that often begin alike, so that the cache has something to find.
std::vector<Request> RandomRequests(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> common(60);
  for (int32_t& id : common) id = static_cast<int32_t>(random() % kVocabulary);
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    std::vector<int32_t> ids(common.begin(), common.begin() + random() % 50);
    for (size_t j = 1 + random() % 20; j > 0; --j) {
      ids.push_back(static_cast<int32_t>(random() % kVocabulary));
    }
    Request request = IdsRequest(std::move(ids));
    request.max_new_tokens = static_cast<int32_t>(1 + random() % 60);
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    request.sampling.seed = random();
    request.priority = static_cast<int32_t>(random() % 3);
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<std::string> TextsAlone(const std::string& script,
                                    const std::vector<Request>& requests) {
  EngineOptions options;
  options.prefix_cache = false;
  const auto engine = MakeScriptedEngine(script, options);
  std::vector<std::string> texts;
  for (const Request& request : requests) {
    const Answer answer = Ask(*engine, request);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    texts.push_back(answer.text());
  }
  return texts;
}

std::vector<std::string> TextsTogether(Engine& engine,
                                       const std::vector<Request>& requests) {
  std::vector<std::unique_ptr<RecordingSink>> sinks;
  EnginePlug plug(engine);
  for (const Request& request : requests) {
    sinks.push_back(std::make_unique<RecordingSink>());
    const auto handle = engine.Submit(request, sinks.back().get());
    EXPECT_TRUE(handle.ok()) << handle.status();
  }
  plug.Release();
  std::vector<std::string> texts;
  for (const auto& sink : sinks) {
    EXPECT_TRUE(sink->Wait().status.ok()) << sink->Wait().status;
    texts.push_back(sink->text());
  }
  return texts;
}

using Setup = std::tuple<bool, const char*>;  // prefix cache, pages and rows
class Batching : public ::testing::TestWithParam<Setup> {};

TEST_P(Batching, SixtyFourConcurrentRequestsGetTheTextTheyGetAlone) {
  const auto& [cache, pool] = GetParam();
  for (const auto script : {HashScript, LogitsScript}) {
    const std::vector<Request> requests = RandomRequests(64, 3);
    const std::vector<std::string> alone = TextsAlone(script(""), requests);
    EngineOptions options;
    options.prefix_cache = cache;
    CountingObserver observer;
    const auto engine = MakeScriptedEngine(script(pool), options, &observer);
    // Twice: the second time the cache is full of the first.
    for (int round = 0; round < 2; ++round) {
      EXPECT_EQ(TextsTogether(*engine, requests), alone);
    }
    const EngineSnapshot idle = WaitIdle(*engine);
    EXPECT_EQ(idle.scheduler.pages_used, 0);
    EXPECT_EQ(idle.scheduler.preemptions,
              static_cast<uint64_t>(observer.preempted));
    EXPECT_EQ(idle.scheduler.prefix_hit_tokens > 0, cache);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Pools, Batching,
    ::testing::Combine(
        ::testing::Bool(),
        ::testing::Values(
            // Room for all; room for a few; barely room for one.
            R"(, "pages": 2000, "page_size": 16, "max_batch_rows": 512)",
            R"(, "pages": 120, "page_size": 4, "max_batch_rows": 64)",
            R"(, "pages": 34, "page_size": 4, "max_batch_rows": 64)")));

TEST(Batching, TinyPoolsPreemptAndStillGiveTheSameText) {
  // Each request ends at 40 + 40 tokens: two of them fill 1.5 times the pool.
  std::vector<Request> requests;
  for (int i = 0; i < 2; ++i) {
    Request request = IdsRequest(std::vector<int32_t>(40, i));
    request.max_new_tokens = 40;
    request.stop.ignore_eos = true;
    requests.push_back(std::move(request));
  }
  const std::vector<std::string> alone = TextsAlone(HashScript(""), requests);
  for (const bool cache : {false, true}) {
    EngineOptions options;
    options.prefix_cache = cache;
    CountingObserver observer;
    const auto engine = MakeScriptedEngine(
        HashScript(R"(, "pages": 30, "page_size": 4)"), options, &observer);
    EXPECT_EQ(TextsTogether(*engine, requests), alone);
    EXPECT_GT(observer.preempted, 0);
    EXPECT_EQ(WaitIdle(*engine).scheduler.pages_used, 0);
  }
}

TEST(Batching, ALongPromptDelaysAStreamByNoMoreThanOneStep) {
  EngineOptions options;
  options.max_sequences = 8;
  CountingObserver observer;
  const auto engine = MakeScriptedEngine(
      R"({"vocabulary": ["a"], "ids": [0], "context_length": 2000,
          "max_batch_rows": 8})",
      options, &observer);
  EnginePlug plug(*engine);
  RecordingSink stream;
  std::vector<int64_t> steps;
  stream.on_delta = [&](const Delta&) { steps.push_back(observer.steps); };
  Request request = IdsRequest({0});
  request.max_new_tokens = 200;
  ASSERT_TRUE(engine->Submit(request, &stream).ok());
  RecordingSink prompt;
  Request longer = IdsRequest(std::vector<int32_t>(400, 0));
  longer.max_new_tokens = 1;
  ASSERT_TRUE(engine->Submit(longer, &prompt).ok());
  plug.Release();
  EXPECT_TRUE(prompt.Wait().status.ok());
  EXPECT_TRUE(stream.Wait().status.ok());
  ASSERT_EQ(steps.size(), 200u);
  for (size_t i = 1; i < steps.size(); ++i) {
    ASSERT_EQ(steps[i], steps[i - 1] + 1) << "a step without a token";
  }
  EXPECT_LE(observer.most_rows, 8);
  // The prompt's more than 50 chunks ran in those very steps.
  EXPECT_EQ(observer.steps, 1 + 200);
}

TEST(Batching, StepsStayWithinTheRowsOfTheModel) {
  EngineOptions options;
  options.max_sequences = 16;
  options.max_queue = 100;
  CountingObserver observer;
  const auto engine = MakeScriptedEngine(
      HashScript(R"(, "pages": 200, "page_size": 4, "max_batch_rows": 16)"),
      options, &observer);
  const std::vector<Request> requests = RandomRequests(64, 9);
  EXPECT_EQ(TextsTogether(*engine, requests),
            TextsAlone(HashScript(""), requests));
  EXPECT_LE(observer.most_rows, 16);
  EXPECT_GE(observer.most_rows, 12);
}

}  // namespace
}  // namespace nibble::engine
