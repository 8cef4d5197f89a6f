// The rules of Tokenizer on small vocabularies and hostile texts.
#include "model/tokenizer.h"

#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_replace.h"
#include "base/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/model/golden_tokens.h"

namespace nibble::model {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::unique_ptr<Tokenizer> Make(TokenizerData data) {
  auto tokenizer = Tokenizer::Create(std::move(data));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::vector<int32_t> Ids(const Tokenizer& tokenizer, std::string_view text,
                         const EncodeOptions& options = {}) {
  const auto ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *ids : std::vector<int32_t>();
}

void Add(TokenizerData& data, const std::string& token,
         TokenKind kind = TokenKind::kNormal, float score = 0) {
  data.tokens.push_back(token);
  data.kinds.push_back(kind);
  if (data.type == TokenizerType::kSentencePiece) data.scores.push_back(score);
}

// 0 <unk>, 1 <s>, 2 </s>, 3 to 258 the bytes, then a few pieces.
TokenizerData LlamaLike() {
  TokenizerData data;
  data.type = TokenizerType::kSentencePiece;
  Add(data, "<unk>", TokenKind::kUnknown);
  Add(data, "<s>", TokenKind::kControl);
  Add(data, "</s>", TokenKind::kControl);
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof(text), "<0x%02X>", byte);
    Add(data, text, TokenKind::kByte);
  }
  Add(data, "▁", TokenKind::kNormal, -10);        // 259
  Add(data, "x", TokenKind::kNormal, -11);        // 260
  Add(data, "▁x", TokenKind::kNormal, -1);        // 261
  Add(data, "▁▁", TokenKind::kNormal, -2);        // 262
  Add(data, "<extra>", TokenKind::kUserDefined);  // 263
  Add(data, "s>", TokenKind::kNormal, -3);        // 264
  Add(data, "<", TokenKind::kNormal, -12);        // 265
  Add(data, "s", TokenKind::kNormal, -13);        // 266
  Add(data, ">", TokenKind::kNormal, -14);        // 267
  data.bos = 1;
  data.eos = 2;
  data.unknown = 0;
  data.add_bos = true;
  return data;
}

// Bytes alone, with <|end|> (0), <|end|>x (1), <|user|> (2, user-defined).
TokenizerData ByteBpe() {
  TokenizerData data = GoldenBpe(ReadGolden("tokens_llama_bpe.json"));
  data.pre = "gpt-2";
  data.tokens.insert(data.tokens.begin(), {"<|end|>", "<|end|>x", "<|user|>"});
  data.kinds.insert(
      data.kinds.begin(),
      {TokenKind::kControl, TokenKind::kControl, TokenKind::kUserDefined});
  data.bos = 0;
  data.eos = 0;
  return data;
}

TokenizerData Scripted() {
  TokenizerData data;
  data.type = TokenizerType::kLongestMatch;
  Add(data, "a");                          // 0
  Add(data, "ab");                         // 1
  Add(data, "abc");                        // 2
  Add(data, "c");                          // 3
  Add(data, "\xF0\x9F");                   // 4
  Add(data, "\x98\x80");                   // 5
  Add(data, "</s>", TokenKind::kControl);  // 6
  Add(data, "");                           // 7
  data.eos = 6;
  return data;
}

std::string RandomUtf8(std::mt19937& random, int characters) {
  // One range a plane and more, so that every length of encoding comes up.
  constexpr uint32_t kEnds[] = {0x80, 0x800, 0x10000, 0x20000, 0x110000};
  std::string text;
  while (characters > 0) {
    const uint32_t code_point = random() % kEnds[random() % 5];
    if (code_point >= 0xD800 && code_point < 0xE000) continue;
    AppendUtf8(text, code_point);
    --characters;
  }
  return text;
}

void ExpectWholeSpans(const Tokenizer& tokenizer, std::string_view text,
                      const EncodeOptions& options = {}) {
  const auto spans = tokenizer.EncodeWithSpans(text, options);
  ASSERT_TRUE(spans.ok()) << spans.status();
  size_t end = 0;
  for (const TokenSpan& span : *spans) {
    ASSERT_EQ(span.begin, end);
    ASSERT_GE(span.end, span.begin);
    end = span.end;
  }
  EXPECT_EQ(end, text.size());
}

TEST(TokenizerTest, RandomTextComesBackWhole) {
  std::mt19937 random(1);
  TokenizerData with_bos = ByteBpe();
  with_bos.add_bos = true;
  const auto bpe = Make(std::move(with_bos));
  const auto pieces = Make(LlamaLike());
  for (int i = 0; i < 300; ++i) {
    const std::string text = RandomUtf8(random, static_cast<int>(i % 50));
    EXPECT_EQ(bpe->Decode(Ids(*bpe, text)), text);
    ExpectWholeSpans(*bpe, text);
    ExpectWholeSpans(*pieces, text);
    if (text.find("\u2581") == std::string::npos) {
      EXPECT_EQ(pieces->Decode(Ids(*pieces, text)), text);
    }
  }
}

TEST(TokenizerTest, EveryPreTokenizerKeepsRandomTextWhole) {
  for (const char* pre : {"default", "falcon", "gpt-2", "llama-bpe", "qwen2",
                          "qwen35", "smollm", "tekken"}) {
    std::mt19937 random(2);
    TokenizerData data = ByteBpe();
    data.pre = pre;
    const auto tokenizer = Make(std::move(data));
    for (int i = 0; i < 50; ++i) {
      const std::string text = RandomUtf8(random, 40);
      EXPECT_EQ(tokenizer->Decode(Ids(*tokenizer, text)), text) << pre;
    }
  }
}

TEST(TokenizerTest, NamesThePlaceOfBadUtf8) {
  const auto bpe = Make(ByteBpe());
  const auto pieces = Make(LlamaLike());
  const auto scripted = Make(Scripted());
  for (const Tokenizer* tokenizer : {bpe.get(), pieces.get(), scripted.get()}) {
    for (const char* tail :
         {"\xFF", "\xC0\x80", "\xED\xA0\x80", "\xE4\xB8", "\xF4\x90\x80\x80"}) {
      const auto ids = tokenizer->Encode(std::string("ab") + tail + "c", {});
      EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(ids.status().message()),
                  HasSubstr("not UTF-8 at byte 2"));
    }
  }
}

TEST(TokenizerTest, SpecialTokensInTextAreTextUnlessParsed) {
  const auto tokenizer = Make(ByteBpe());
  const std::string text = "a<|end|>b";
  EXPECT_THAT(Ids(*tokenizer, text), testing::Not(testing::Contains(0)));
  EXPECT_EQ(tokenizer->Decode(Ids(*tokenizer, text)), text);
  const std::vector<int32_t> parsed =
      Ids(*tokenizer, text, {.parse_special = true});
  ASSERT_EQ(parsed.size(), 3u);
  EXPECT_EQ(parsed[1], 0);
  EXPECT_EQ(tokenizer->Decode(parsed), "ab");
  EXPECT_EQ(tokenizer->Decode(parsed, /*special=*/true), text);
  ExpectWholeSpans(*tokenizer, text, {.parse_special = true});
}

TEST(TokenizerTest, TheLongestSpecialTokenWins) {
  const auto tokenizer = Make(ByteBpe());
  EXPECT_THAT(
      Ids(*tokenizer, "<|end|>x<|end|><|end|>x", {.parse_special = true}),
      ElementsAre(1, 0, 1));
  EXPECT_THAT(Ids(*tokenizer, "<|end|", {.parse_special = true}),
              testing::Not(testing::Contains(0)));
}

TEST(TokenizerTest, UserDefinedTokensAreAlwaysRecognised) {
  const auto tokenizer = Make(ByteBpe());
  EXPECT_THAT(Ids(*tokenizer, "<|user|>"), ElementsAre(2));
  EXPECT_EQ(tokenizer->TokenBytes(2), "<|user|>");
  EXPECT_FALSE(tokenizer->IsSpecial(2));
  EXPECT_EQ(tokenizer->SpecialToken("<|user|>"), 2);
  EXPECT_EQ(tokenizer->SpecialToken("a"), std::nullopt);
}

TEST(TokenizerTest, ThereIsOneBosAndOneEos) {
  TokenizerData data = ByteBpe();
  data.add_bos = true;
  data.add_eos = true;
  data.eos = 1;
  const auto tokenizer = Make(std::move(data));
  EXPECT_THAT(Ids(*tokenizer, ""), ElementsAre(0, 1));
  const std::vector<int32_t> plain = Ids(*tokenizer, "a");
  EXPECT_EQ(plain.size(), 3u);
  EXPECT_EQ(Ids(*tokenizer, "<|end|>a<|end|>x", {.parse_special = true}),
            plain);
  EXPECT_EQ(Ids(*tokenizer, "a", {.add_special = false}).size(), 1u);
}

TEST(TokenizerTest, BytesWithoutTokenAreDropped) {
  TokenizerData data;
  data.pre = "gpt-2";
  Add(data, "a");
  Add(data, "!");
  Add(data, "!!");
  Add(data, "<s>", TokenKind::kControl);
  data.merges = {"! !"};
  const auto tokenizer = Make(std::move(data));
  EXPECT_THAT(Ids(*tokenizer, "a\x04!!"), ElementsAre(0, 2));
  // What is dropped keeps its neighbours apart.
  EXPECT_THAT(Ids(*tokenizer, "!\x04!"), ElementsAre(1, 1));
  EXPECT_THAT(Ids(*tokenizer, "\x04\x05"), IsEmpty());
  ExpectWholeSpans(*tokenizer,
                   "\x04"
                   "a\x04!\x04\x04");
  ExpectWholeSpans(*tokenizer, "\x04<s>\x04<s>\x04", {.parse_special = true});
}

TEST(TokenizerTest, TokensOfAThousandSpacesAreWhole) {
  for (const size_t size : {64u, 1000u}) {
    TokenizerData data;
    data.type = TokenizerType::kLongestMatch;
    Add(data, std::string(size, ' '));
    Add(data, "x");
    const auto tokenizer = Make(std::move(data));
    EXPECT_EQ(tokenizer->TokenBytes(0), std::string(size, ' '));
    EXPECT_EQ(tokenizer->max_token_bytes(), size);
    EXPECT_THAT(Ids(*tokenizer, std::string(size, ' ') + "x"),
                ElementsAre(0, 1));
    TokenizerData pieces = LlamaLike();
    std::string spelling;
    for (size_t i = 0; i < size; ++i) spelling += "▁";
    Add(pieces, spelling);
    const auto llama = Make(std::move(pieces));
    EXPECT_EQ(llama->TokenBytes(268), std::string(size, ' '));
    EXPECT_EQ(llama->Decode(std::vector<int32_t>{260, 268}),
              "x" + std::string(size, ' '));
  }
}

TEST(TokenizerTest, SentencePieceSpacesStandAsInLlama) {
  const auto tokenizer = Make(LlamaLike());
  const EncodeOptions parse = {.parse_special = true};
  EXPECT_THAT(Ids(*tokenizer, ""), ElementsAre(1));
  EXPECT_THAT(Ids(*tokenizer, "x"), ElementsAre(1, 261));
  EXPECT_THAT(Ids(*tokenizer, " x"), ElementsAre(1, 259, 261));
  EXPECT_THAT(Ids(*tokenizer, "  x"), ElementsAre(1, 262, 261));
  EXPECT_THAT(Ids(*tokenizer, "<s>x", parse), ElementsAre(1, 261));
  EXPECT_THAT(Ids(*tokenizer, "<s> x", parse), ElementsAre(1, 259, 261));
  EXPECT_THAT(Ids(*tokenizer, "x <s>", parse), ElementsAre(1, 261, 259, 1));
  EXPECT_THAT(Ids(*tokenizer, "x<s>x", parse), ElementsAre(1, 261, 1, 261));
  EXPECT_THAT(Ids(*tokenizer, "x<extra>x"), ElementsAre(1, 261, 263, 261));
}

TEST(TokenizerTest, SentencePieceWithoutPrefixAddsNoSpace) {
  TokenizerData data = LlamaLike();
  data.add_space_prefix = false;
  const auto tokenizer = Make(std::move(data));
  EXPECT_THAT(Ids(*tokenizer, "x x"), ElementsAre(1, 260, 261));
  EXPECT_EQ(tokenizer->Decode(Ids(*tokenizer, " x x")), " x x");
}

TEST(TokenizerTest, SentencePieceNeverMergesToASpecialToken) {
  const auto tokenizer = Make(LlamaLike());
  EXPECT_THAT(Ids(*tokenizer, "<s>"), ElementsAre(1, 259, 265, 264));
  EXPECT_THAT(Ids(*tokenizer, "<0x0A>"),
              testing::Not(testing::Contains(3 + 10)));
}

TEST(TokenizerTest, SentencePieceFallsBackToBytes) {
  const auto tokenizer = Make(LlamaLike());
  EXPECT_THAT(Ids(*tokenizer, "x中"),
              ElementsAre(1, 261, 3 + 0xE4, 3 + 0xB8, 3 + 0xAD));
  EXPECT_EQ(tokenizer->TokenBytes(3 + 0xE4), "\xE4");
  for (const std::string text :
       {"This is 🦙.cpp", " x", "  x", "👨‍👩‍👧‍👦",
        "全角　ＡＢＣ", "x\n\t x "}) {
    EXPECT_EQ(tokenizer->Decode(Ids(*tokenizer, text)), text);
    ExpectWholeSpans(*tokenizer, text);
  }
}

TEST(TokenizerTest, SentencePieceDecodeMirrorsSpacesAroundSpecialTokens) {
  const auto tokenizer = Make(LlamaLike());
  for (const std::string text : {"<s>x", "x<s> x", "x <s>x</s>", "<s><s> x"}) {
    const std::vector<int32_t> ids =
        Ids(*tokenizer, text, {.add_special = false, .parse_special = true});
    EXPECT_EQ(tokenizer->Decode(ids, /*special=*/true), text);
  }
}

TEST(TokenizerTest, SentencePieceWithoutAnyTokenForACharacterSaysSo) {
  TokenizerData data;
  data.type = TokenizerType::kSentencePiece;
  data.add_space_prefix = false;
  Add(data, "a");
  const auto tokenizer = Make(std::move(data));
  const auto ids = tokenizer->Encode("aab", {});
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ids.status().message()), HasSubstr("at byte 2"));
}

TEST(TokenizerTest, LongestMatchTakesTheLongestToken) {
  const auto tokenizer = Make(Scripted());
  EXPECT_THAT(Ids(*tokenizer, "abcabac"), ElementsAre(2, 1, 0, 3));
  EXPECT_THAT(Ids(*tokenizer, "a😀"), ElementsAre(0, 4, 5));
  EXPECT_EQ(tokenizer->Decode(Ids(*tokenizer, "a😀")), "a😀");
  const auto spans = tokenizer->EncodeWithSpans("a😀", {});
  EXPECT_EQ((*spans)[1].begin, 1u);
  EXPECT_EQ((*spans)[1].end, 3u);
}

TEST(TokenizerTest, LongestMatchNamesTheByteNothingMatches) {
  const auto tokenizer = Make(Scripted());
  const auto ids = tokenizer->Encode("ab?", {});
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ids.status().message()), HasSubstr("at byte 2"));
  EXPECT_FALSE(tokenizer->Encode("a</s>", {}).ok());
  EXPECT_THAT(Ids(*tokenizer, "a</s>", {.parse_special = true}),
              ElementsAre(0, 6));
}

TEST(TokenizerTest, EndTokensAreThoseOfTheData) {
  TokenizerData data = LlamaLike();
  data.eot = 264;
  data.end_of_generation = {263, 2};
  const auto tokenizer = Make(std::move(data));
  EXPECT_THAT(tokenizer->end_of_generation(), ElementsAre(2, 263, 264));
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(264));
  EXPECT_FALSE(tokenizer->IsEndOfGeneration(1));
}

// Each is a megabyte; an algorithm that is not close to linear in it would
// take hours, so to finish is the test.
TEST(TokenizerTest, HostileMegabytesAreTokenized) {
  constexpr size_t kBytes = 1 << 20;
  std::mt19937 random(3);
  std::vector<std::string> texts = {RandomUtf8(random, kBytes / 3)};
  for (const std::string unit :
       {"a", "\n", " ", "1", "=", "<", "ab", "a ", " \n", "\r\n", "\u3000",
        "e\u0301", "<|end|>", "<|en", "'"}) {
    std::string text;
    while (text.size() < kBytes) text += unit;
    texts.push_back(text);
  }
  texts.push_back(std::string(kBytes, ' ') + "x");
  const auto bpe = Make(ByteBpe());
  const auto pieces = Make(LlamaLike());
  for (const std::string& text : texts) {
    const std::vector<int32_t> ids = Ids(*bpe, text, {.parse_special = true});
    EXPECT_TRUE(bpe->Decode(ids, /*special=*/true) == text);
    // "▁" is how a space is spelled.
    EXPECT_TRUE(pieces->Decode(Ids(*pieces, text)) ==
                absl::StrReplaceAll(text, {{"\u2581", " "}}));
  }
}

TEST(TokenizerTest, FourThreadsShareIt) {
  const auto bpe = Make(ByteBpe());
  const auto pieces = Make(LlamaLike());
  const std::vector<std::string> texts = GoldenTexts();
  std::vector<std::vector<int32_t>> expected;
  for (const std::string& text : texts) {
    expected.push_back(Ids(*bpe, text));
    expected.push_back(Ids(*pieces, text));
  }
  std::vector<std::vector<std::vector<int32_t>>> seen(4);
  std::vector<std::thread> threads;
  for (auto& mine : seen) {
    threads.emplace_back([&] {
      for (const std::string& text : texts) {
        mine.push_back(*bpe->Encode(text, {}));
        mine.push_back(*pieces->Encode(text, {}));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& mine : seen) EXPECT_EQ(mine, expected);
}

}  // namespace
}  // namespace nibble::model
