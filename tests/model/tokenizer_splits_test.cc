// Where each pre-tokenizer rule cuts, against Hugging Face's regex engine.
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "model/pre_tokenizer.h"
#include "tests/model/golden_tokens.h"

namespace nibble::model {
namespace {

std::vector<size_t> Lengths(const std::vector<TextRange>& pieces) {
  std::vector<size_t> lengths;
  for (const TextRange& piece : pieces) {
    lengths.push_back(piece.end - piece.begin);
  }
  return lengths;
}

TEST(PreTokenizerTest, SplitsAsHuggingFaceDoes) {
  const auto golden = ReadGolden("tokens_splits.json");
  const std::vector<std::string> texts = GoldenTexts();
  ASSERT_EQ(golden.size(), 8u);
  for (const auto& [pre, lists] : golden.items()) {
    const auto rule = PreTokenizer::Create(pre);
    ASSERT_TRUE(rule.ok()) << rule.status();
    ASSERT_EQ(lists.size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto pieces = rule->Split(texts[i]);
      ASSERT_TRUE(pieces.ok()) << pieces.status();
      EXPECT_EQ(Lengths(*pieces), lists[i].get<std::vector<size_t>>())
          << pre << " on text " << i << ": " << texts[i];
    }
  }
}

TEST(PreTokenizerTest, KnowsOtherNamesOfTheSameRules) {
  const std::string text = "don't  say 12345 'S!\n\n";
  const auto split = [&](const std::string& pre) {
    const auto rule = PreTokenizer::Create(pre);
    EXPECT_TRUE(rule.ok()) << rule.status();
    return rule.ok() ? Lengths(*rule->Split(text)) : std::vector<size_t>();
  };
  EXPECT_EQ(split(""), split("default"));
  EXPECT_EQ(split("llama3"), split("llama-bpe"));
  EXPECT_EQ(split("dbrx"), split("llama-bpe"));
  EXPECT_EQ(split("deepseek-r1-qwen"), split("qwen2"));
  EXPECT_EQ(split("starcoder"), split("smollm"));
  EXPECT_NE(split("smollm"), split("gpt-2"));
  EXPECT_NE(split("qwen2"), split("llama-bpe"));
}

TEST(PreTokenizerTest, OnlyLlama3sRuleLooksUpWholePieces) {
  EXPECT_TRUE(PreTokenizer::Create("llama-bpe")->ignore_merges());
  EXPECT_FALSE(PreTokenizer::Create("dbrx")->ignore_merges());
  EXPECT_FALSE(PreTokenizer::Create("qwen2")->ignore_merges());
}

TEST(PreTokenizerTest, RefusesAnUnknownRuleByName) {
  const auto rule = PreTokenizer::Create("no-such-rule");
  EXPECT_EQ(rule.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(rule.status().message().find("no-such-rule"),
            absl::string_view::npos);
}

// U+180E was white space in old Unicode versions and still is for PCRE2's \s.
TEST(PreTokenizerTest, WhiteSpaceIsUnicodesProperty) {
  const auto rule = PreTokenizer::Create("gpt-2");
  EXPECT_EQ(Lengths(*rule->Split("\u180E\u180E!")), (std::vector<size_t>{7}));
  EXPECT_EQ(Lengths(*rule->Split("\u0085\u3000x")),
            (std::vector<size_t>{2, 3, 1}));
}

}  // namespace
}  // namespace nibble::model
