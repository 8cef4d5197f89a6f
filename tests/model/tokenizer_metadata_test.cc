#include "model/tokenizer_metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/support/gguf_writer.h"

namespace nibble::model {
namespace {

using test::GgufWriter;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<TokenizerData> Read(const GgufWriter& writer) {
  const std::string text = writer.Build();
  const auto file = GgufFile::Parse(std::as_bytes(std::span(text)), "m.gguf");
  if (!file.ok()) return file.status();
  return ReadTokenizerData(*file);
}

std::string Refusal(const GgufWriter& writer) {
  const auto data = Read(writer);
  EXPECT_FALSE(data.ok());
  const std::string message(data.status().message());
  EXPECT_EQ(message.substr(0, 8), "m.gguf: ");
  return message;
}

GgufWriter Bpe() {
  GgufWriter writer;
  writer.String("tokenizer.ggml.model", "gpt2")
      .Strings("tokenizer.ggml.tokens", {"a", "b", "ab", "<|im_end|>"})
      .Int32s("tokenizer.ggml.token_type", {1, 1, 1, 3})
      .Strings("tokenizer.ggml.merges", {"a b"});
  return writer;
}

GgufWriter SentencePiece() {
  GgufWriter writer;
  writer.String("tokenizer.ggml.model", "llama")
      .Strings("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "<0x0A>", "a"})
      .Floats("tokenizer.ggml.scores", {0, 0, 0, 0, -1})
      .Int32s("tokenizer.ggml.token_type", {2, 3, 3, 6, 1});
  return writer;
}

TEST(TokenizerMetadata, Bpe) {
  const auto data = Read(Bpe().String("tokenizer.ggml.pre", "qwen2"));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->type, TokenizerType::kByteLevelBpe);
  EXPECT_EQ(data->pre, "qwen2");
  EXPECT_THAT(data->tokens, ElementsAre("a", "b", "ab", "<|im_end|>"));
  EXPECT_THAT(data->kinds,
              ElementsAre(TokenKind::kNormal, TokenKind::kNormal,
                          TokenKind::kNormal, TokenKind::kControl));
  EXPECT_THAT(data->merges, ElementsAre("a b"));
  EXPECT_TRUE(data->scores.empty());
  EXPECT_FALSE(data->bos || data->eos || data->eot || data->unknown ||
               data->padding);
  EXPECT_FALSE(data->add_bos);
  EXPECT_FALSE(data->add_eos);
  EXPECT_FALSE(data->add_space_prefix);
  EXPECT_EQ(data->chat_template, "");
  EXPECT_THAT(data->end_of_generation, ElementsAre(3));
}

TEST(TokenizerMetadata, SentencePieceDefaults) {
  const auto data = Read(SentencePiece());
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->type, TokenizerType::kSentencePiece);
  EXPECT_EQ(data->unknown, 0);
  EXPECT_EQ(data->bos, 1);
  EXPECT_EQ(data->eos, 2);
  EXPECT_TRUE(data->add_bos);
  EXPECT_FALSE(data->add_eos);
  EXPECT_TRUE(data->add_space_prefix);
  EXPECT_THAT(data->scores, ElementsAre(0, 0, 0, 0, -1));
  EXPECT_THAT(data->kinds, ElementsAre(TokenKind::kUnknown, TokenKind::kControl,
                                       TokenKind::kControl, TokenKind::kByte,
                                       TokenKind::kNormal));
  EXPECT_THAT(data->end_of_generation, ElementsAre(2));
}

TEST(TokenizerMetadata, KeysOverDefaults) {
  const auto data = Read(SentencePiece()
                             .Uint32("tokenizer.ggml.bos_token_id", 4)
                             .Uint32("tokenizer.ggml.eos_token_id", 3)
                             .Uint32("tokenizer.ggml.eot_token_id", 1)
                             .Uint32("tokenizer.ggml.eom_token_id", 0)
                             .Uint32("tokenizer.ggml.unknown_token_id", 4)
                             .Uint32("tokenizer.ggml.padding_token_id", 2)
                             .Bool("tokenizer.ggml.add_bos_token", false)
                             .Bool("tokenizer.ggml.add_eos_token", true)
                             .Bool("tokenizer.ggml.add_space_prefix", false)
                             .String("tokenizer.chat_template", "{{ x }}"));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->bos, 4);
  EXPECT_EQ(data->eos, 3);
  EXPECT_EQ(data->eot, 1);
  EXPECT_EQ(data->unknown, 4);
  EXPECT_EQ(data->padding, 2);
  EXPECT_FALSE(data->add_bos);
  EXPECT_TRUE(data->add_eos);
  EXPECT_FALSE(data->add_space_prefix);
  EXPECT_EQ(data->chat_template, "{{ x }}");
  EXPECT_THAT(data->end_of_generation, ElementsAre(0, 1, 2, 3));
}

TEST(TokenizerMetadata, PreTokenizersThatAddBos) {
  for (const char* pre : {"llama-bpe", "llama3", "tekken"}) {
    const auto data = Read(Bpe()
                               .String("tokenizer.ggml.pre", pre)
                               .Uint32("tokenizer.ggml.bos_token_id", 0));
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_TRUE(data->add_bos) << pre;
  }
  const auto smollm = Read(Bpe()
                               .String("tokenizer.ggml.pre", "smollm")
                               .Uint32("tokenizer.ggml.bos_token_id", 0));
  ASSERT_TRUE(smollm.ok()) << smollm.status();
  EXPECT_FALSE(smollm->add_bos);
}

TEST(TokenizerMetadata, NoVocabulary) {
  for (const GgufWriter& writer :
       {GgufWriter(), GgufWriter().String("tokenizer.ggml.model", "none"),
        GgufWriter().String("tokenizer.ggml.model", "no_vocab")}) {
    const auto data = Read(writer);
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_TRUE(data->tokens.empty());
    EXPECT_TRUE(data->end_of_generation.empty());
  }
}

TEST(TokenizerMetadata, UnknownModel) {
  EXPECT_THAT(Refusal(Bpe().Remove("tokenizer.ggml.model")),
              HasSubstr("key \"tokenizer.ggml.model\" is missing"));
  EXPECT_THAT(Refusal(Bpe()
                          .Remove("tokenizer.ggml.model")
                          .String("tokenizer.ggml.model", "t5")),
              HasSubstr("key \"tokenizer.ggml.model\" is \"t5\", expected "
                        "gpt2, llama or none"));
}

TEST(TokenizerMetadata, MissingParts) {
  EXPECT_THAT(Refusal(Bpe().Remove("tokenizer.ggml.tokens")),
              HasSubstr("key \"tokenizer.ggml.tokens\" is missing"));
  EXPECT_THAT(Refusal(Bpe().Remove("tokenizer.ggml.merges")),
              HasSubstr("key \"tokenizer.ggml.merges\" is missing"));
  EXPECT_THAT(Refusal(SentencePiece().Remove("tokenizer.ggml.scores")),
              HasSubstr("key \"tokenizer.ggml.scores\" is missing"));
  EXPECT_THAT(Refusal(Bpe()
                          .Remove("tokenizer.ggml.tokens")
                          .Strings("tokenizer.ggml.tokens", {})),
              HasSubstr("key \"tokenizer.ggml.tokens\" is empty"));
}

TEST(TokenizerMetadata, LengthsThatDisagree) {
  const std::string scores = "tokenizer.ggml.scores";
  EXPECT_THAT(Refusal(SentencePiece().Remove(scores).Floats(scores, {1, 2})),
              HasSubstr("key \"" + scores +
                        "\" has 2 elements, expected one a token, 5"));
  const std::string types = "tokenizer.ggml.token_type";
  EXPECT_THAT(Refusal(Bpe().Remove(types).Int32s(types, {1, 1, 1, 1, 1})),
              HasSubstr("key \"" + types + "\" has 5 elements"));
  EXPECT_THAT(Refusal(Bpe().Zeros("token_embd.weight", {8, 5})),
              HasSubstr("key \"tokenizer.ggml.tokens\" has 4 tokens, expected "
                        "the rows of tensor \"token_embd.weight\", 5"));
}

TEST(TokenizerMetadata, ValuesOutOfRange) {
  const std::string types = "tokenizer.ggml.token_type";
  EXPECT_THAT(Refusal(Bpe().Remove(types).Int32s(types, {1, 1, 7, 1})),
              HasSubstr("at index 2 is 7, expected 0 to 6"));
  const std::string scores = "tokenizer.ggml.scores";
  EXPECT_THAT(Refusal(SentencePiece().Remove(scores).Floats(
                  scores, {0, 0, 0, 0, std::nanf("")})),
              HasSubstr("key \"" + scores + "\" at index 4 is nan"));
  for (const char* name : {"bos", "eos", "eot", "eom", "unknown"}) {
    const std::string key = std::string("tokenizer.ggml.") + name + "_token_id";
    for (const uint32_t id : {4u, UINT32_MAX}) {
      EXPECT_THAT(Refusal(Bpe().Uint32(key, id)),
                  HasSubstr("key \"" + key + "\" is " + std::to_string(id) +
                            ", expected 0 to 3"));
    }
  }
}

TEST(TokenizerMetadata, PaddingOutOfRangeIsIgnored) {
  const auto data = Read(Bpe().Uint32("tokenizer.ggml.padding_token_id", 4));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_FALSE(data->padding.has_value());
}

TEST(TokenizerMetadata, BosThatIsNoToken) {
  EXPECT_THAT(Refusal(Bpe().Bool("tokenizer.ggml.add_bos_token", true)),
              HasSubstr("\"tokenizer.ggml.bos_token_id\" is missing"));
  EXPECT_THAT(Refusal(Bpe().Bool("tokenizer.ggml.add_eos_token", true)),
              HasSubstr("\"tokenizer.ggml.eos_token_id\" is missing"));
}

TEST(TokenizerMetadata, EndsAreControlTokensOnly) {
  GgufWriter writer;
  writer.String("tokenizer.ggml.model", "gpt2")
      .Strings("tokenizer.ggml.tokens",
               {"<|eot_id|>", "<|endoftext|>", "</s>", "<end_of_turn>", "x"})
      .Int32s("tokenizer.ggml.token_type", {3, 3, 1, 3, 3})
      .Strings("tokenizer.ggml.merges", {})
      .Uint32("tokenizer.ggml.eos_token_id", 1);
  const auto data = Read(writer);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(data->end_of_generation, ElementsAre(0, 1, 3));
}

}  // namespace
}  // namespace nibble::model
