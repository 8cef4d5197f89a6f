#include "model/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>

#include "kernels/reference/half.h"
#include "tests/support/gguf_writer.h"

namespace nibble::model {
namespace {

using kernels::QuantFormat;
using test::Bytes;
using test::GgufWriter;
using test::WriteSmallModel;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// An opened checkpoint and the file behind it.
struct Opened {
  explicit Opened(const GgufWriter& writer)
      : file(writer.Build()), checkpoint(Checkpoint::Open(file.path())) {}
  test::TemporaryFile file;
  absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint;
};

TEST(Checkpoint, SmallModelsOfEveryFormat) {
  for (const kernels::FormatInfo& info : kernels::kFormatTable) {
    for (const Architecture architecture :
         {Architecture::kLlama, Architecture::kQwen2}) {
      const Opened opened(WriteSmallModel({.architecture = architecture,
                                           .format = info.format,
                                           .hidden_size = 256,
                                           .feed_forward_size = 512}));
      ASSERT_TRUE(opened.checkpoint.ok()) << opened.checkpoint.status();
      const Checkpoint& checkpoint = **opened.checkpoint;
      EXPECT_EQ(checkpoint.config().file_type, info.name);
      EXPECT_EQ(checkpoint.path(), opened.file.path());
      EXPECT_EQ(checkpoint.tokenizer().tokens.size(), 259u);
      const auto q = checkpoint.Tensor("blk.1.attn_q.weight", 256, 256);
      ASSERT_TRUE(q.ok()) << q.status();
      EXPECT_EQ(q->format, info.format);
      EXPECT_EQ(checkpoint.Has("blk.1.attn_q.bias"),
                architecture == Architecture::kQwen2);
    }
  }
}

TEST(Checkpoint, TensorsByName) {
  const Opened opened(WriteSmallModel({}));
  ASSERT_TRUE(opened.checkpoint.ok()) << opened.checkpoint.status();
  const Checkpoint& checkpoint = **opened.checkpoint;
  EXPECT_EQ(checkpoint.tensors().front().name, "token_embd.weight");
  EXPECT_EQ(checkpoint.tensors().back().name, "output_norm.weight");
  EXPECT_TRUE(checkpoint.Has("output_norm.weight"));
  EXPECT_FALSE(checkpoint.Has("output.weight"));

  const auto missing = checkpoint.Tensor("output.weight", 1, 1);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(missing.status().message(),
            opened.file.path() + ": tensor \"output.weight\" is missing");
  const auto shape = checkpoint.Tensor("blk.0.ffn_up.weight", 64, 96);
  EXPECT_EQ(shape.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(shape.status().message(),
            opened.file.path() +
                ": tensor \"blk.0.ffn_up.weight\" has the shape [96, 64], "
                "expected [64, 96]");
}

TEST(Checkpoint, VectorsAreConverted) {
  using kernels::reference::FloatToBFloat16;
  using kernels::reference::FloatToHalf;
  GgufWriter writer = WriteSmallModel({});
  writer
      .Tensor({.name = "f32",
               .dims = {3},
               .bytes = Bytes(1.5f) + Bytes(-2.0f) + Bytes(3e38f)})
      .Tensor({.name = "f16",
               .dims = {3},
               .type = 1,
               .bytes = Bytes(FloatToHalf(1.5f)) + Bytes(FloatToHalf(-2.0f)) +
                        Bytes(FloatToHalf(6e-8f))})
      .Tensor({.name = "bf16",
               .dims = {3},
               .type = 30,
               .bytes = Bytes(FloatToBFloat16(1.5f)) +
                        Bytes(FloatToBFloat16(-2.0f)) +
                        Bytes(FloatToBFloat16(0.0f))});
  const Opened opened(writer);
  ASSERT_TRUE(opened.checkpoint.ok()) << opened.checkpoint.status();
  const Checkpoint& checkpoint = **opened.checkpoint;
  EXPECT_THAT(*checkpoint.Vector("f32", 3), ElementsAre(1.5f, -2.0f, 3e38f));
  EXPECT_THAT(*checkpoint.Vector("f16", 3), ElementsAre(1.5f, -2.0f, 0x1p-24f));
  EXPECT_THAT(*checkpoint.Vector("bf16", 3), ElementsAre(1.5f, -2.0f, 0.0f));
  EXPECT_THAT(checkpoint.Vector("f32", 4).status().message(),
              HasSubstr("has the shape [1, 3], expected [1, 4]"));
  EXPECT_THAT(checkpoint.Vector("blk.0.ffn_up.weight", 64).status().message(),
              HasSubstr("has the shape [96, 64], expected [1, 64]"));
}

TEST(Checkpoint, QuantizedVectorsAreRefused) {
  GgufWriter writer = WriteSmallModel({});
  writer.Tensor(
      {.name = "q", .dims = {32}, .type = 2, .bytes = std::string(18, '\0')});
  const Opened opened(writer);
  ASSERT_TRUE(opened.checkpoint.ok()) << opened.checkpoint.status();
  EXPECT_THAT((*opened.checkpoint)->Vector("q", 32).status().message(),
              HasSubstr("tensor \"q\" is q4_0, expected f32, f16 or bf16"));
}

TEST(Checkpoint, ServesTokenIdsWithoutVocabulary) {
  const Opened opened(WriteSmallModel({.vocabulary = false}));
  ASSERT_TRUE(opened.checkpoint.ok()) << opened.checkpoint.status();
  EXPECT_TRUE((*opened.checkpoint)->tokenizer().tokens.empty());
}

TEST(Checkpoint, ErrorsNameTheFile) {
  EXPECT_EQ(Checkpoint::Open("/nonexistent").status().code(),
            absl::StatusCode::kNotFound);
  const test::TemporaryFile text("just some text");
  EXPECT_EQ(Checkpoint::Open(text.path()).status().message(),
            text.path() + ": is not a GGUF file: it begins with \"just\"");
  const Opened broken(WriteSmallModel({}).Remove("llama.block_count"));
  EXPECT_EQ(broken.checkpoint.status().message(),
            broken.file.path() +
                ": key \"llama.block_count\" is missing, expected an integer");
}

TEST(Checkpoint, SmolLm2) {
  const std::string path = std::string(NIBBLE_SOURCE_DIR) +
                           "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(path)) {
    GTEST_SKIP() << path << " is absent: scripts/fetch-model fetches it";
  }
  const auto opened = Checkpoint::Open(path);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const Checkpoint& checkpoint = **opened;
  const ModelConfig& config = checkpoint.config();
  EXPECT_EQ(config.architecture, Architecture::kLlama);
  EXPECT_EQ(config.file_type, "q4_1");
  EXPECT_EQ(config.layers, 30);
  EXPECT_EQ(config.hidden_size, 576);
  EXPECT_EQ(config.heads, 9);
  EXPECT_EQ(config.kv_heads, 3);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.feed_forward_size, 1536);
  EXPECT_EQ(config.vocab_size, 49152);
  EXPECT_EQ(config.context_length, 8192);
  EXPECT_EQ(config.parameters, 134515008u);
  EXPECT_TRUE(config.tied_embeddings);
  std::map<QuantFormat, int> counts;
  for (const kernels::WeightView& tensor : checkpoint.tensors()) {
    ++counts[tensor.format];
  }
  EXPECT_EQ(counts[QuantFormat::kQ4_1], 210);
  EXPECT_EQ(counts[QuantFormat::kQ8_0], 1);
  EXPECT_EQ(counts[QuantFormat::kF32], 61);
  const auto embedding = checkpoint.Tensor("token_embd.weight", 49152, 576);
  ASSERT_TRUE(embedding.ok()) << embedding.status();
  EXPECT_EQ(embedding->format, QuantFormat::kQ8_0);

  const TokenizerData& tokenizer = checkpoint.tokenizer();
  EXPECT_EQ(tokenizer.type, TokenizerType::kByteLevelBpe);
  EXPECT_EQ(tokenizer.pre, "smollm");
  EXPECT_EQ(tokenizer.tokens.size(), 49152u);
  EXPECT_EQ(tokenizer.merges.size(), 48900u);
  EXPECT_EQ(tokenizer.bos, 1);
  EXPECT_EQ(tokenizer.eos, 2);
  EXPECT_FALSE(tokenizer.add_bos);
  EXPECT_THAT(tokenizer.end_of_generation, ElementsAre(0, 2));
  EXPECT_THAT(tokenizer.chat_template, HasSubstr("<|im_start|>assistant"));
}

}  // namespace
}  // namespace nibble::model
