// Token ids of independent implementations; tests/golden/README.md says whose.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "model/checkpoint.h"
#include "model/tokenizer.h"
#include "tests/model/golden_tokens.h"

namespace nibble::model {
namespace {

std::unique_ptr<Tokenizer> Make(TokenizerData data) {
  auto tokenizer = Tokenizer::Create(std::move(data));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

void ExpectIds(const Tokenizer& tokenizer, const IdLists& expected,
               const EncodeOptions& options) {
  const std::vector<std::string> texts = GoldenTexts();
  ASSERT_GE(texts.size(), 300u);
  ASSERT_EQ(texts.size(), expected.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto ids = tokenizer.Encode(texts[i], options);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, expected[i]) << "text " << i << ": " << texts[i];
  }
}

// Spans lie end to end over each text.
void ExpectSpans(const Tokenizer& tokenizer) {
  for (const std::string& text : GoldenTexts()) {
    const auto spans = tokenizer.EncodeWithSpans(text, {});
    ASSERT_TRUE(spans.ok()) << spans.status();
    size_t end = 0;
    for (const TokenSpan& span : *spans) {
      EXPECT_EQ(span.begin, end) << text;
      EXPECT_GE(span.end, span.begin) << text;
      end = span.end;
    }
    EXPECT_EQ(end, text.size()) << text;
  }
}

void ExpectRoundTrip(const Tokenizer& tokenizer) {
  for (const std::string& text : GoldenTexts()) {
    const auto ids = tokenizer.Encode(text, {});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(tokenizer.Decode(*ids), text);
  }
}

class SmolLm2Test : public testing::Test {
 protected:
  void SetUp() override {
    const std::string path = std::string(NIBBLE_SOURCE_DIR) +
                             "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (!std::filesystem::exists(path)) {
      GTEST_SKIP() << path << " is absent; scripts/fetch-model brings it";
    }
    auto checkpoint = Checkpoint::Open(path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    tokenizer_ = Make((*checkpoint)->tokenizer());
    ASSERT_NE(tokenizer_, nullptr);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(SmolLm2Test, GivesHuggingFacesIds) {
  const auto golden = ReadGolden("tokens_smollm2.json");
  ExpectIds(*tokenizer_, golden["ids"].get<IdLists>(), {});
}

TEST_F(SmolLm2Test, GivesHuggingFacesIdsWithSpecialTokensParsed) {
  const auto golden = ReadGolden("tokens_smollm2.json");
  IdLists expected = golden["ids"].get<IdLists>();
  ASSERT_FALSE(golden["parsed"].empty());
  for (const auto& entry : golden["parsed"]) {
    expected[entry[0].get<size_t>()] = entry[1].get<std::vector<int32_t>>();
  }
  ExpectIds(*tokenizer_, expected, {.parse_special = true});
}

TEST_F(SmolLm2Test, KeepsTextsWhole) {
  ExpectSpans(*tokenizer_);
  ExpectRoundTrip(*tokenizer_);
}

TEST_F(SmolLm2Test, KnowsItsSpecialTokens) {
  EXPECT_EQ(tokenizer_->vocab_size(), 49152);
  EXPECT_EQ(tokenizer_->bos(), 1);
  EXPECT_EQ(tokenizer_->eos(), 2);
  EXPECT_FALSE(tokenizer_->adds_bos());
  EXPECT_TRUE(tokenizer_->IsEndOfGeneration(2));
  EXPECT_FALSE(tokenizer_->IsEndOfGeneration(1));
  EXPECT_EQ(tokenizer_->SpecialToken("<|im_end|>"), 2);
  EXPECT_EQ(tokenizer_->TokenBytes(2), "");
  EXPECT_EQ(tokenizer_->TokenBytes(2, /*special=*/true), "<|im_end|>");
}

class BpeGoldenTest : public testing::TestWithParam<const char*> {};

TEST_P(BpeGoldenTest, GivesHuggingFacesIds) {
  const auto golden = ReadGolden(GetParam());
  const auto tokenizer = Make(GoldenBpe(golden));
  ASSERT_NE(tokenizer, nullptr);
  ExpectIds(*tokenizer, golden["ids"].get<IdLists>(), {});
  ExpectSpans(*tokenizer);
  ExpectRoundTrip(*tokenizer);
}

INSTANTIATE_TEST_SUITE_P(Files, BpeGoldenTest,
                         testing::Values("tokens_gpt2.json",
                                         "tokens_qwen2.json",
                                         "tokens_llama_bpe.json"));

TEST(SentencePieceGoldenTest, GivesSentencePiecesIdsWithByteFallback) {
  const auto golden = ReadGolden("tokens_sentencepiece.json");
  const auto tokenizer = Make(GoldenSentencePiece(golden));
  ASSERT_NE(tokenizer, nullptr);
  ExpectIds(*tokenizer, golden["ids"].get<IdLists>(), {});
  ExpectSpans(*tokenizer);
  for (const std::string& text : GoldenTexts()) {
    // "▁" itself is how a space is spelled.
    if (text.find("\u2581") != std::string::npos) continue;
    EXPECT_EQ(tokenizer->Decode(*tokenizer->Encode(text, {})), text);
  }
}

TEST(SentencePieceGoldenTest, GivesSentencePiecesIdsWithUnknownTokens) {
  const auto golden = ReadGolden("tokens_sentencepiece_unknown.json");
  const auto tokenizer = Make(GoldenSentencePiece(golden));
  ASSERT_NE(tokenizer, nullptr);
  ExpectIds(*tokenizer, golden["ids"].get<IdLists>(), {});
  ExpectSpans(*tokenizer);
}

}  // namespace
}  // namespace nibble::model
