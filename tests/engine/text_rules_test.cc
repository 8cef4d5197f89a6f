// What a client sees of the text rules, through a whole engine.

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "gtest/gtest.h"
#include "tests/support/scripted.h"

namespace nibble::engine {
namespace {

using nibble::testing::Answer;
using nibble::testing::Ask;
using nibble::testing::IdsRequest;
using nibble::testing::MakeScriptedEngine;
using nibble::testing::TokensScript;

Request WithStops(std::vector<std::string> stops, bool include = false) {
  Request request = IdsRequest({0});
  request.stop.strings = std::move(stops);
  request.stop.include_stop = include;
  return request;
}

Answer RunTokens(const std::vector<std::string>& tokens, Request request) {
  const auto engine = MakeScriptedEngine(TokensScript(tokens));
  Answer answer = Ask(*engine, std::move(request));
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  return answer;
}

TEST(TextRules, ChunksEndAtCharacterBoundaries) {
  const Answer answer =
      RunTokens({"\xF0", "\x9F", "\x98", "\x80", "a"}, IdsRequest({0}));
  EXPECT_EQ(answer.text(), "😀a");
  std::vector<std::string> shown;
  for (const std::string& chunk : answer.sink->output().chunks) {
    if (!chunk.empty()) shown.push_back(chunk);
  }
  EXPECT_EQ(shown, (std::vector<std::string>{"😀", "a"}));
  EXPECT_EQ(answer.sink->reason(), FinishReason::kEos);
}

TEST(TextRules, InvalidBytesBecomeOneReplacementAndTheRawBytesAreThere) {
  Request request = IdsRequest({0});
  request.output.token_bytes = true;
  const Answer answer = RunTokens({"a", "\xFF", "b"}, std::move(request));
  EXPECT_EQ(answer.text(), "a\uFFFDb");
  const auto& tokens = answer.sink->output().tokens;
  ASSERT_EQ(tokens.size(), 4u);  // EOS included
  EXPECT_EQ(tokens[1].bytes, "\xFF");
  EXPECT_EQ(tokens[3].bytes, "");  // EOS adds nothing to the text
  EXPECT_EQ(RunTokens({"a", "\xC0", "b"}, IdsRequest({0})).text(), "a\uFFFDb");
}

TEST(TextRules, ACharacterThatNeverEndsBecomesAReplacement) {
  EXPECT_EQ(RunTokens({"a", "\xF0\x9F"}, IdsRequest({0})).text(), "a\uFFFD");
  Request request = IdsRequest({0});
  request.max_new_tokens = 2;
  const Answer answer = RunTokens({"a", "\xE2\x82", "\xAC"}, request);
  EXPECT_EQ(answer.text(), "a\uFFFD");
  EXPECT_EQ(answer.sink->reason(), FinishReason::kLength);
}

TEST(TextRules, AStopIsFoundInsideAToken) {
  const Answer answer = RunTokens({" Paris."}, WithStops({"Pari"}));
  EXPECT_EQ(answer.text(), " ");
  EXPECT_EQ(answer.sink->reason(), FinishReason::kStopString);
  const auto& finish = *answer.sink->output().finish;
  EXPECT_EQ(std::get<std::string>(finish.matched_stop), "Pari");
  EXPECT_EQ(RunTokens({"a", "\n\n"}, WithStops({"\n"})).text(), "a");
}

TEST(TextRules, AStopSpansTokensAndIsExcludedUnlessAsked) {
  const std::vector<std::string> tokens = {" O", " P", " Q", " R"};
  const Answer answer = RunTokens(tokens, WithStops({" O P Q"}));
  EXPECT_EQ(answer.text(), "");
  EXPECT_EQ(answer.sink->output().finish->usage.generated_tokens, 3);
  EXPECT_EQ(RunTokens(tokens, WithStops({" O P Q"}, true)).text(), " O P Q");
}

TEST(TextRules, CutsExactlyAfterAndAtAnEmoji) {
  std::vector<std::string> tokens;
  for (const char byte : std::string("🌀🌀")) tokens.emplace_back(1, byte);
  tokens.emplace_back("END");
  EXPECT_EQ(RunTokens(tokens, WithStops({"END"})).text(), "🌀🌀");
  const Answer whole = RunTokens(tokens, WithStops({"🌀"}));
  EXPECT_EQ(whole.text(), "");
  EXPECT_EQ(whole.sink->output().finish->usage.generated_tokens, 4);
}

TEST(TextRules, StopListsOfConcurrentRequestsDoNotMix) {
  const auto engine =
      MakeScriptedEngine(TokensScript({"x", "dd", "a", "b", "c"}));
  nibble::testing::RecordingSink first;
  nibble::testing::RecordingSink second;
  ASSERT_TRUE(engine->Submit(WithStops({"a"}), &first).ok());
  ASSERT_TRUE(engine->Submit(WithStops({"b", "c", "dd"}), &second).ok());
  EXPECT_TRUE(first.Wait().status.ok());
  EXPECT_TRUE(second.Wait().status.ok());
  EXPECT_EQ(first.text(), "xdd");
  EXPECT_EQ(second.text(), "x");
}

TEST(TextRules, TheEarliestStopWinsThenTheLongest) {
  EXPECT_EQ(RunTokens({"xabc"}, WithStops({"bc", "abc"})).text(), "x");
  EXPECT_EQ(RunTokens({"xabc"}, WithStops({"ab", "abc"}, true)).text(), "xabc");
}

TEST(TextRules, AStopStringWinsOverTheLengthLimitInTheSameStep) {
  Request request = WithStops({"b"});
  request.max_new_tokens = 2;
  const Answer answer = RunTokens({"a", "b", "c"}, std::move(request));
  EXPECT_EQ(answer.text(), "a");
  EXPECT_EQ(answer.sink->reason(), FinishReason::kStopString);
}

TEST(TextRules, HeldBackTextIsShownWhenTheOutputEndsOtherwise) {
  Request request = WithStops({"abcd"});
  request.max_new_tokens = 3;
  EXPECT_EQ(RunTokens({"a", "b", "c", "d"}, request).text(), "abc");
  EXPECT_EQ(RunTokens({"x", "ab"}, WithStops({"abc"})).text(), "xab");
}

TEST(TextRules, AStopTokenEndsTheTextAndIsNotShown) {
  Request request = IdsRequest({0});
  request.stop.token_ids = {1};
  request.output.token_ids = true;
  const Answer answer = RunTokens({"a", "b", "c"}, std::move(request));
  EXPECT_EQ(answer.text(), "a");
  EXPECT_EQ(answer.sink->reason(), FinishReason::kStopToken);
  const auto& finish = *answer.sink->output().finish;
  EXPECT_EQ(std::get<int32_t>(finish.matched_stop), 1);
  EXPECT_EQ(finish.usage.generated_tokens, 2);
  EXPECT_EQ(answer.sink->ids(), (std::vector<int32_t>{0, 1}));
}

TEST(TextRules, IgnoredEndTokensShowNothingAndStopNothing) {
  Request request = IdsRequest({0});
  request.stop.ignore_eos = true;
  request.max_new_tokens = 5;
  request.output.token_ids = true;
  const Answer answer = RunTokens({"a", "b"}, std::move(request));
  EXPECT_EQ(answer.text(), "ab");
  EXPECT_EQ(answer.sink->reason(), FinishReason::kLength);
  EXPECT_EQ(answer.sink->ids(), (std::vector<int32_t>{0, 1, 2, 2, 2}));
}

TEST(TextRules, NoEndOrStopTokenIsChosenBeforeMinNewTokens) {
  Request request = IdsRequest({0});
  request.stop.min_new_tokens = 4;
  request.stop.token_ids = {1};
  request.output.token_ids = true;
  // "b" is banned, then EOS is: the lowest allowed id is chosen instead.
  const Answer answer = RunTokens({"a", "b"}, std::move(request));
  EXPECT_EQ(answer.sink->ids(), (std::vector<int32_t>{0, 0, 0, 0, 2}));
  EXPECT_EQ(answer.sink->reason(), FinishReason::kEos);
}

TEST(TextRules, StopStringsAreNotSearchedBeforeMinNewTokens) {
  Request request = WithStops({"ab"});
  request.stop.min_new_tokens = 3;
  const Answer answer =
      RunTokens({"a", "b", "a", "b", "a", "b", "c"}, std::move(request));
  EXPECT_EQ(answer.text(), "abab");
  EXPECT_EQ(answer.sink->reason(), FinishReason::kStopString);
}

TEST(TextRules, SpecialTokensGiveNoText) {
  const auto engine = MakeScriptedEngine(R"({
    "vocabulary": ["a", {"text": "<|mark|>", "special": true},
                   {"text": "<eos>", "eos": true}],
    "ids": [0, 1, 0]})");
  EXPECT_EQ(Ask(*engine, IdsRequest({0})).text(), "aa");
}

TEST(TextRules, JoinedChunksEqualTheTextOfOneBigToken) {
  // The same bytes cut into tokens in different ways give the same text.
  const std::string bytes = "añ😀\xFF b\xE2\x82x END tail";
  std::vector<std::string> single;
  for (const char byte : bytes) single.emplace_back(1, byte);
  for (const auto& stops : std::vector<std::vector<std::string>>{
           {}, {"END"}, {"😀"}, {"\uFFFDx"}, {"tail!"}}) {
    const std::string whole = RunTokens({bytes}, WithStops(stops)).text();
    EXPECT_EQ(RunTokens(single, WithStops(stops)).text(), whole);
  }
}

}  // namespace
}  // namespace nibble::engine
