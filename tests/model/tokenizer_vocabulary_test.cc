// What Tokenizer::Create refuses.
#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/tokenizer.h"

namespace nibble::model {
namespace {

using testing::HasSubstr;

TokenizerData SmallSentencePiece() {
  TokenizerData data;
  data.type = TokenizerType::kSentencePiece;
  data.tokens = {"<unk>", "<s>", "</s>", "<0x0A>", "a"};
  data.kinds = {TokenKind::kUnknown, TokenKind::kControl, TokenKind::kControl,
                TokenKind::kByte, TokenKind::kNormal};
  data.scores = {0, 0, 0, 0, -1};
  data.unknown = 0;
  data.bos = 1;
  data.eos = 2;
  return data;
}

TokenizerData SmallBpe() {
  TokenizerData data;
  data.type = TokenizerType::kByteLevelBpe;
  data.pre = "gpt-2";
  data.tokens = {"<end>", "a", "b", "ab"};
  data.kinds = {TokenKind::kControl, TokenKind::kNormal, TokenKind::kNormal,
                TokenKind::kNormal};
  data.merges = {"a b"};
  return data;
}

void ExpectRefused(TokenizerData data, const std::string& part) {
  const auto tokenizer = Tokenizer::Create(std::move(data));
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(part));
}

TEST(TokenizerCreateTest, TakesSoundVocabularies) {
  EXPECT_TRUE(Tokenizer::Create(SmallSentencePiece()).ok());
  EXPECT_TRUE(Tokenizer::Create(SmallBpe()).ok());
}

TEST(TokenizerCreateTest, RefusesAnEmptyVocabulary) {
  ExpectRefused(TokenizerData{}, "no tokens");
}

TEST(TokenizerCreateTest, RefusesListsOfOtherLengths) {
  TokenizerData data = SmallSentencePiece();
  data.kinds.pop_back();
  ExpectRefused(data, "kinds: 4 entries for 5 tokens");
  data = SmallSentencePiece();
  data.scores.push_back(0);
  ExpectRefused(data, "scores: 6 entries for 5 tokens");
}

TEST(TokenizerCreateTest, RefusesNanScores) {
  TokenizerData data = SmallSentencePiece();
  data.scores[4] = std::nanf("");
  ExpectRefused(data, "token 4 has NaN");
}

TEST(TokenizerCreateTest, RefusesIdsOutsideTheVocabulary) {
  for (const int32_t id : {-1, 5, INT32_MAX}) {
    const std::string part = std::to_string(id) + " is not in [0, 5)";
    TokenizerData data = SmallSentencePiece();
    data.bos = id;
    ExpectRefused(data, "bos: id " + part);
    data = SmallSentencePiece();
    data.unknown = id;
    ExpectRefused(data, "unknown: id " + part);
    data = SmallSentencePiece();
    data.end_of_generation = {2, id};
    ExpectRefused(data, "end_of_generation: id " + part);
  }
}

TEST(TokenizerCreateTest, RefusesToAddWhatItDoesNotHave) {
  TokenizerData data = SmallSentencePiece();
  data.add_bos = true;
  data.bos.reset();
  ExpectRefused(data, "there is no bos");
  data = SmallSentencePiece();
  data.add_eos = true;
  data.eos.reset();
  ExpectRefused(data, "there is no eos");
}

TEST(TokenizerCreateTest, RefusesByteTokensThatAreNotTwoHexDigits) {
  for (const std::string text :
       {"<0xZZ>", "<0x-1>", "<0x0>", "<0x000>", "<0x 1>", "<0x0G>", "0x0A",
        "<0X0A>", "<0x0A", "<0x+1>", "a", ""}) {
    TokenizerData data = SmallSentencePiece();
    data.tokens[3] = text;
    ExpectRefused(data, "a byte token is");
  }
}

TEST(TokenizerCreateTest, RefusesTwoTokensForOneByte) {
  TokenizerData data = SmallSentencePiece();
  data.tokens[4] = "<0x0a>";
  data.kinds[4] = TokenKind::kByte;
  ExpectRefused(data, "tokens 3 and 4 are both byte 10");
}

TEST(TokenizerCreateTest, RefusesEqualTokens) {
  TokenizerData data = SmallBpe();
  data.tokens[3] = "a";
  ExpectRefused(data, "tokens 1 and 3 are both \"a\"");
}

TEST(TokenizerCreateTest, RefusesMergesThatAreNotTwoParts) {
  for (const std::string merge : {"", "ab", "a ", " "}) {
    TokenizerData data = SmallBpe();
    data.merges.push_back(merge);
    ExpectRefused(data, "merge 1 is not two parts");
  }
}

TEST(TokenizerCreateTest, LeavesOutMergesOfTokensItLacks) {
  TokenizerData data = SmallBpe();
  data.merges = {"a c", "ab a", "a b", "a b"};
  const auto tokenizer = Tokenizer::Create(std::move(data));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(*(*tokenizer)->Encode("aba", {}), (std::vector<int32_t>{3, 1}));
}

TEST(TokenizerCreateTest, RefusesAnUnknownPreTokenizer) {
  TokenizerData data = SmallBpe();
  data.pre = "surprise";
  ExpectRefused(data, "surprise");
}

}  // namespace
}  // namespace nibble::model
