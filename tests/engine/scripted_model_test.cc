#include "engine/scripted_model.h"

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/scripted.h"

namespace nibble::engine {
namespace {

using nibble::testing::Ask;
using nibble::testing::IdsRequest;
using nibble::testing::MakeScriptedEngine;
using nibble::testing::TextRequest;
using ::testing::HasSubstr;

std::string Problem(std::string_view json) {
  const auto runner = ParseScriptedModel(json, "FILE", {});
  EXPECT_FALSE(runner.ok()) << json;
  EXPECT_EQ(runner.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(runner.status().message());
  EXPECT_THAT(message, HasSubstr("FILE: "));
  return message;
}

TEST(ScriptedModel, NamesTheFieldThatIsWrong) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"", "parse_error"},
      {"{", "parse_error"},
      {"[]", "an object is expected"},
      {"{}", "vocabulary: the field is missing"},
      {R"({"vocabulary": []})", "vocabulary: the array is empty"},
      {R"({"vocabulary": {}})", "vocabulary: an array is expected"},
      {R"({"vocabulary": ["a", 7]})", "vocabulary[1]: an object is expected"},
      {R"({"vocabulary": ["a", "a"]})", "vocabulary[1]: the token is there"},
      {R"({"vocabulary": [""]})", "vocabulary[0]: the token is empty"},
      {R"({"vocabulary": [{"bytes": "F"}]})", "vocabulary[0].bytes: pairs"},
      {R"({"vocabulary": [{"bytes": "GG"}]})", "vocabulary[0].bytes: pairs"},
      {R"({"vocabulary": [{"text": "a", "bytes": "61"}]})",
       "vocabulary[0].text: either"},
      {R"({"vocabulary": [{"text": "a", "eos": 1}]})", "vocabulary[0].eos"},
      {R"({"vocabulary": [{"text": "a", "end": true}]})",
       "vocabulary[0].end: there is no such field"},
      {R"({"vocabulary": [{"text":"a","bos":true},{"text":"b","bos":true}]})",
       "vocabulary[1].bos: another"},
      {R"({"vocabulary": ["a"], "ids": [0], "add_bos": true})", "add_bos: no"},
      {R"({"vocabulary": ["a"]})", "ids: exactly one of"},
      {R"({"vocabulary": ["a"], "ids": [0], "hash": {}})", "ids: exactly one"},
      {R"({"vocabulary": ["a"], "ids": []})", "ids: the array is empty"},
      {R"({"vocabulary": ["a"], "ids": [1]})", "ids[0]: 1 is not a token id"},
      {R"({"vocabulary": ["a"], "ids": [0, -1]})", "ids[1]: -1 is not"},
      {R"({"vocabulary": ["a"], "ids": [0.5]})", "ids[0]: 0.5 is not"},
      {R"({"vocabulary": ["a"], "ids": ["b"]})", "ids[0]: \"b\" is not in"},
      {R"({"vocabulary": ["a"], "ids": [0], "then": "eos"})", "then: no"},
      {R"({"vocabulary": ["a"], "ids": [0], "then": "stop"})", "then: \"eos\""},
      {R"({"vocabulary": ["a"], "logits": [[1, 2]]})", "logits[0]: 2 logits"},
      {R"({"vocabulary": ["a"], "logits": [["x"]]})", "logits[0][0]: \"x\""},
      {R"({"vocabulary": ["a"], "logits": [{"b": 1}]})", "logits[0][\"b\"]"},
      {R"({"vocabulary": ["a"], "logits": [{"1": 1}]})", "logits[0][\"1\"]"},
      {R"({"vocabulary": ["a"], "logits": [1]})", "logits[0]: an array or"},
      {R"({"vocabulary": ["a"], "hash": {"eos_period": 5}})",
       "hash.eos_period: no vocabulary entry"},
      {R"({"vocabulary": ["a"], "hash": {"seed": -1}})", "hash.seed: -1"},
      {R"({"vocabulary": ["a"], "scripts": [{"ids": [0], "when": {"x": 1}}]})",
       "scripts[0].when.x: there is no such field"},
      {R"({"vocabulary": ["a"],
           "scripts": [{"ids": [0], "when": {"prompt_tokens": 1}}]})",
       "scripts[0]: the last script"},
      {R"({"vocabulary": ["a"], "scripts": [{"ids": [0]}], "ids": [0]})",
       "ids: it belongs into"},
      {R"({"vocabulary": ["a"], "ids": [0], "context_length": 0})",
       "context_length: 0 is not a number in [1,"},
      {R"({"vocabulary": ["a"], "ids": [0], "pages": "9"})", "pages: \"9\""},
      {R"({"vocabulary": ["a"], "ids": [0], "pages": 18446744073709551615})",
       "pages: 18446744073709551615"},
      {R"({"vocabulary": ["a"], "ids": [0], "pages": 2147483647,
           "page_size": 2147483647})",
       "pages: "},
      {R"({"vocabulary": ["a"], "ids": [0], "delays": {"step_us": -1}})",
       "delays.step_us: -1"},
      {R"({"vocabulary": ["a"], "ids": [0], "delays": {"block": 1}})",
       "delays.block: there is no such field"},
      {R"({"vocabulary": ["a"], "ids": [0], "dealys": {}})",
       "dealys: there is no such field"},
      {R"({"vocabulary": ["a"], "ids": [0], "default_logit": "x"})",
       "default_logit: \"x\""},
  };
  for (const auto& [json, problem] : cases) {
    EXPECT_THAT(Problem(json), HasSubstr(problem)) << json;
  }
}

TEST(ScriptedModel, IsReadFromAFile) {
  const std::string path = ::testing::TempDir() + "/scripted_model_test.json";
  std::ofstream(path) << R"({"name": "demo", "vocabulary": ["a", "b"],
                             "ids": ["b"], "context_length": 99})";
  const auto runner = LoadScriptedModel(path, {});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const RunnerInfo& info = (*runner)->info();
  EXPECT_EQ(info.name, "demo");
  EXPECT_EQ(info.architecture, "scripted");
  EXPECT_EQ(info.vocab_size, 2);
  EXPECT_EQ(info.context_length, 99);
  EXPECT_GT(info.pages, 0);
  std::remove(path.c_str());
  EXPECT_TRUE(absl::IsNotFound(LoadScriptedModel(path, {}).status()));
}

TEST(ScriptedModel, TheFileWinsOverTheOptions) {
  LoadOptions options;
  options.kv_pages = 7;
  options.page_size = 32;
  options.max_batch_rows = 100;
  auto runner =
      ParseScriptedModel(R"({"vocabulary": ["a"], "ids": [0]})", "x", options);
  ASSERT_TRUE(runner.ok());
  EXPECT_EQ((*runner)->info().pages, 7);
  EXPECT_EQ((*runner)->info().page_size, 32);
  EXPECT_EQ((*runner)->info().max_batch_rows, 100);
  runner = ParseScriptedModel(
      R"({"vocabulary": ["a"], "ids": [0], "pages": 3, "page_size": 4,
          "max_batch_rows": 5})",
      "x", options);
  ASSERT_TRUE(runner.ok());
  EXPECT_EQ((*runner)->info().pages, 3);
  EXPECT_EQ((*runner)->info().page_size, 4);
  EXPECT_EQ((*runner)->info().max_batch_rows, 5);
}

std::string ReadSource(const std::string& path) {
  std::ifstream stream(std::string(NIBBLE_SOURCE_DIR) + "/" + path);
  EXPECT_TRUE(stream.good()) << path;
  return {std::istreambuf_iterator<char>(stream),
          std::istreambuf_iterator<char>()};
}

TEST(ScriptedModel, TheDocumentedExampleDoesWhatItsTextSays) {
  const std::string page = ReadSource("docs/scripted-model.md");
  const std::string fence = "```json\n";
  const size_t begin = page.find(fence) + fence.size();
  const std::string json = page.substr(begin, page.find("```", begin) - begin);
  const auto engine = MakeScriptedEngine(json);
  EXPECT_EQ(Ask(*engine, TextRequest("the weather?")).text(), "Sunny😀");
  const auto failed = Ask(*engine, TextRequest("fail now"));
  EXPECT_EQ(failed.status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(failed.text(), "Hello");
  Request other = TextRequest("anything else");
  other.max_new_tokens = 6;
  EXPECT_EQ(Ask(*engine, std::move(other)).text(),
            "Hello there, worldHello there");
  EXPECT_TRUE(engine->chat_template().ok());
}

std::string TextOf(Engine& engine, Request request, int32_t max_new = 5) {
  request.max_new_tokens = max_new;
  const auto answer = Ask(engine, std::move(request));
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  return answer.text();
}

TEST(ScriptedModel, TheFirstScriptThatMatchesAnswers) {
  const auto engine = MakeScriptedEngine(R"({
    "vocabulary": ["a", "b", "c", "d", {"text": "<eos>", "eos": true}],
    "scripts": [
      {"when": {"prompt_begins": "ab"}, "ids": ["a"]},
      {"when": {"prompt_contains": "dd"}, "ids": ["b"]},
      {"when": {"prompt_tokens": 3}, "ids": ["c"]},
      {"ids": ["d", "d"]}]})");
  EXPECT_EQ(TextOf(*engine, TextRequest("abdd")), "a");
  EXPECT_EQ(TextOf(*engine, TextRequest("cddc")), "b");
  EXPECT_EQ(TextOf(*engine, TextRequest("cac")), "c");
  EXPECT_EQ(TextOf(*engine, TextRequest("ca")), "dd");
}

TEST(ScriptedModel, GoesOnAsSaid) {
  const auto repeats = MakeScriptedEngine(
      R"({"vocabulary": ["a", "b", {"text": "<eos>", "eos": true}],
          "ids": ["a", "b"], "then": "repeat"})");
  EXPECT_EQ(TextOf(*repeats, IdsRequest({0})), "ababa");
  const auto no_eos =
      MakeScriptedEngine(R"({"vocabulary": ["a", "b"], "ids": ["a", "b"]})");
  EXPECT_EQ(TextOf(*no_eos, IdsRequest({0})), "ababa");
}

TEST(ScriptedModel, ScriptedIdsAreGivenWhateverTheSampling) {
  const auto engine = MakeScriptedEngine(
      R"({"vocabulary": ["a", "b", "c"], "ids": ["b", "c"]})");
  Request request = IdsRequest({0});
  request.sampling.temperature = 1;
  request.sampling.presence_penalty = 2;
  request.sampling.repetition_penalty = 1.5;
  EXPECT_EQ(TextOf(*engine, request, 6), "bcbcbc");
}

TEST(ScriptedModel, EveryByteCanBeEncodedWhenAsked) {
  const auto engine = MakeScriptedEngine(
      R"({"vocabulary": ["hello ", {"text": "<eos>", "eos": true}],
          "all_bytes": true, "ids": ["hello "]})");
  EXPECT_EQ(engine->info().vocab_size, 2 + 256);
  Request request = TextRequest("hello é😀");
  request.output.echo = true;
  const auto answer = Ask(*engine, std::move(request));
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.text(), "hello é😀hello ");
  EXPECT_EQ(answer.sink->prompt().prompt_tokens, 1 + 2 + 4);
}

TEST(ScriptedModel, ChatsWithTheNamedTemplate) {
  const auto engine = MakeScriptedEngine(
      R"({"vocabulary": [{"text": "<|im_start|>", "special": true},
                         {"text": "<|im_end|>", "eos": true}],
          "all_bytes": true, "chat_template": "chatml",
          "scripts": [{"when": {"prompt_contains": "Hi<|im_end|>"},
                       "ids": ["o", "k"]},
                      {"ids": ["?"]}]})");
  ASSERT_TRUE(engine->chat_template().ok()) << engine->chat_template().status();
  Request request = IdsRequest({});
  request.prompt = ChatPrompt{{{"user", "Hi"}}, false};
  EXPECT_EQ(TextOf(*engine, std::move(request)), "ok");
}

TEST(ScriptedModel, WithoutATemplateOnlyChatFails) {
  const auto engine =
      MakeScriptedEngine(R"({"vocabulary": ["a"], "ids": ["a"]})");
  Request request = IdsRequest({});
  request.prompt = ChatPrompt{{{"user", "a"}}, false};
  EXPECT_EQ(Ask(*engine, std::move(request)).status.code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(TextOf(*engine, IdsRequest({0}), 1), "a");
}

TEST(ScriptedModel, DelaysItsSteps) {
  const auto engine = MakeScriptedEngine(
      R"({"vocabulary": ["a"], "ids": ["a"],
          "delays": {"step_us": 1000, "prefill_us_per_token": 2000,
                     "block_at_step": {"step": 2, "ms": 30}}})");
  const auto begin = Clock::now();
  EXPECT_EQ(TextOf(*engine, IdsRequest({0, 0, 0}), 3), "aaa");
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(3 + 6 + 30));
}

// One sequence's batch, whose last row is sampled.
model::Batch OneSequence(const std::vector<int32_t>& tokens,
                         const std::vector<int32_t>& pages, int32_t page_size,
                         int32_t first) {
  model::Batch batch;
  batch.Clear();
  for (int32_t p = first; p < static_cast<int32_t>(tokens.size()); ++p) {
    batch.tokens.push_back(tokens[p]);
    batch.positions.push_back(p);
    batch.slots.push_back(int64_t{pages[p / page_size]} * page_size +
                          p % page_size);
  }
  batch.row_begin.push_back(batch.rows());
  batch.page_ids = pages;
  batch.page_begin.push_back(static_cast<int32_t>(pages.size()));
  batch.logit_rows.push_back(batch.rows() - 1);
  return batch;
}

TEST(ScriptedModel, HashTokensDependOnThePrefixInThePagesAndNothingElse) {
  constexpr int32_t kPageSize = 2;
  std::string json = R"({"hash": {}, "pages": 8, "page_size": 2,
                         "vocabulary": ["0")";
  for (int i = 1; i < 50; ++i) json += ",\"" + std::to_string(i) + "\"";
  const auto runner = ParseScriptedModel(json + "]}", "x", {});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const kernels::SamplingParams greedy;
  const auto logprob = [&](const model::Batch& batch) {
    kernels::SampleRow row;
    row.params = &greedy;
    row.num_logprobs = 0;
    kernels::SampleResult result;
    (*runner)->Step(batch, {&row, 1}, {&result, 1});
    EXPECT_TRUE(result.finite);
    return std::pair(result.token, result.chosen.logprob);
  };
  const std::vector<int32_t> tokens = {3, 1, 4, 1, 5};
  const auto whole = logprob(OneSequence(tokens, {0, 1, 2}, kPageSize, 0));
  EXPECT_EQ(logprob(OneSequence(tokens, {6, 3, 4}, kPageSize, 0)), whole);
  // Only the last token is new: the rest is read from the pages.
  EXPECT_EQ(logprob(OneSequence(tokens, {0, 1, 2}, kPageSize, 4)), whole);
  EXPECT_NE(logprob(OneSequence(tokens, {1, 0, 2}, kPageSize, 4)), whole);
  EXPECT_NE(logprob(OneSequence(tokens, {0, 7, 2}, kPageSize, 4)), whole);
  EXPECT_NE(logprob(OneSequence({3, 1, 4, 1, 6}, {0, 1, 2}, kPageSize, 0)),
            whole);
  model::Batch decode = OneSequence(tokens, {0, 1, 2}, kPageSize, 4);
  decode.decode_rows = 1;
  EXPECT_NE(logprob(decode), whole) << "the path is part of the prefix";
}

}  // namespace
}  // namespace nibble::engine
