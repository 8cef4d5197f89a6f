#include "model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "model/gguf.h"
#include "tests/support/gguf_writer.h"

namespace nibble::model {
namespace {

using test::Bytes;
using test::GgufWriter;
using test::WriteSmallModel;
using ::testing::HasSubstr;

absl::StatusOr<ModelConfig> Config(const GgufWriter& writer) {
  const std::string text = writer.Build();
  const auto file = GgufFile::Parse(std::as_bytes(std::span(text)), "m.gguf");
  if (!file.ok()) return file.status();
  return ReadModelConfig(*file);
}

GgufWriter Llama() { return WriteSmallModel({.vocabulary = false}); }

std::string Refusal(const GgufWriter& writer) {
  const auto config = Config(writer);
  EXPECT_FALSE(config.ok());
  const std::string message(config.status().message());
  EXPECT_EQ(message.substr(0, 8), "m.gguf: ");
  return message;
}

TEST(ModelConfig, Llama) {
  const auto config = Config(Llama());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, Architecture::kLlama);
  EXPECT_EQ(config->name, "small random model");
  EXPECT_EQ(config->file_type, "q4_0");
  EXPECT_EQ(config->vocab_size, test::kSmallModelVocab);
  EXPECT_EQ(config->context_length, 256);
  EXPECT_EQ(config->hidden_size, 64);
  EXPECT_EQ(config->layers, 2);
  EXPECT_EQ(config->heads, 4);
  EXPECT_EQ(config->kv_heads, 2);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->feed_forward_size, 96);
  EXPECT_EQ(config->rms_epsilon, 1e-5f);
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_EQ(config->rope.pairing, kernels::RopeParams::Pairing::kAdjacent);
  EXPECT_EQ(config->rope.inverse_frequency.size(), 8u);
  EXPECT_EQ(config->rope.attention_factor, 1.0f);
  const uint64_t layer = 64 * (64 + 32 + 32 + 64) + 3 * 64 * 96 + 2 * 64;
  EXPECT_EQ(config->parameters, 259u * 64 + 2 * layer + 64);
  EXPECT_EQ(config->weight_bytes,
            (config->parameters - 5 * 64) / 32 * 18 + 5 * 64 * 4);
}

TEST(ModelConfig, Qwen2) {
  const auto config = Config(WriteSmallModel(
      {.architecture = Architecture::kQwen2, .tied_embeddings = false}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, Architecture::kQwen2);
  EXPECT_FALSE(config->tied_embeddings);
  EXPECT_EQ(config->rope.pairing, kernels::RopeParams::Pairing::kHalves);
}

TEST(ModelConfig, Defaults) {
  GgufWriter writer = Llama();
  writer.Remove("llama.attention.head_count_kv").Remove("llama.rope.freq_base");
  const auto config = Config(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->kv_heads, 4);
  EXPECT_FLOAT_EQ(config->rope.inverse_frequency[1],
                  std::pow(10000.0f, -1.0f / 8));
}

TEST(ModelConfig, HeadsOfTheirOwnSize) {
  const auto config = Config(Llama()
                                 .Uint32("llama.attention.key_length", 32)
                                 .Uint32("llama.attention.value_length", 32)
                                 .Uint32("llama.rope.dimension_count", 24));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 32);
  EXPECT_EQ(config->rope.inverse_frequency.size(), 12u);
}

TEST(ModelConfig, NeutralKeysAreFine) {
  const auto config = Config(Llama()
                                 .Uint32("llama.expert_count", 0)
                                 .Uint32("llama.expert_used_count", 0)
                                 .Float32("llama.logit_scale", 1)
                                 .Float32("llama.final_logit_softcapping", 0)
                                 .Float32("llama.attention.scale", 0.25f)
                                 .Bool("llama.attention.causal", true)
                                 .Uint32("llama.vocab_size", 259)
                                 .Uint32("split.count", 1)
                                 .String("general.type", "model"));
  EXPECT_TRUE(config.ok()) << config.status();
}

TEST(ModelConfig, UnknownArchitecture) {
  GgufWriter writer = Llama();
  writer.Remove("general.architecture").String("general.architecture", "rwkv7");
  EXPECT_EQ(Refusal(writer),
            "m.gguf: architecture \"rwkv7\" is not supported (supported: "
            "llama, qwen2)");
  writer.Remove("general.architecture");
  EXPECT_THAT(Refusal(writer),
              HasSubstr("key \"general.architecture\" is missing"));
}

TEST(ModelConfig, NotAWholeModel) {
  EXPECT_THAT(Refusal(Llama().String("general.type", "adapter")),
              HasSubstr("key \"general.type\" is \"adapter\""));
  EXPECT_THAT(Refusal(Llama().Raw("split.count", 2, Bytes<uint16_t>(3))),
              HasSubstr("key \"split.count\" is 3"));
}

TEST(ModelConfig, MissingKeys) {
  for (const char* suffix :
       {"block_count", "context_length", "embedding_length",
        "feed_forward_length", "attention.head_count",
        "attention.layer_norm_rms_epsilon"}) {
    const std::string key = std::string("llama.") + suffix;
    EXPECT_THAT(Refusal(Llama().Remove(key)),
                HasSubstr("key \"" + key + "\" is missing"));
  }
}

TEST(ModelConfig, CountsOutOfRange) {
  for (const char* suffix :
       {"block_count", "context_length", "embedding_length",
        "feed_forward_length", "attention.head_count",
        "attention.head_count_kv", "attention.key_length",
        "attention.value_length", "rope.dimension_count", "vocab_size"}) {
    const std::string key = std::string("llama.") + suffix;
    for (const uint64_t value : {uint64_t{0}, uint64_t{1} << 31, UINT64_MAX}) {
      EXPECT_THAT(Refusal(Llama().Remove(key).Uint64(key, value)),
                  HasSubstr("key \"" + key + "\" is " + std::to_string(value) +
                            ", expected 1 to "));
    }
    EXPECT_THAT(Refusal(Llama().Remove(key).Int32s(key, {4, 4})),
                HasSubstr("key \"" + key + "\" is an array of 2 int32"));
  }
}

TEST(ModelConfig, CountsThatDisagree) {
  EXPECT_THAT(Refusal(Llama()
                          .Remove("llama.attention.head_count_kv")
                          .Uint32("llama.attention.head_count_kv", 3)),
              HasSubstr("\"llama.attention.head_count\" is 4, expected a "
                        "multiple of \"llama.attention.head_count_kv\", 3"));
  EXPECT_THAT(Refusal(Llama()
                          .Remove("llama.attention.head_count")
                          .Uint32("llama.attention.head_count", 6)),
              HasSubstr("\"llama.embedding_length\" is 64, expected a "
                        "multiple"));
  EXPECT_THAT(Refusal(Llama().Uint32("llama.attention.value_length", 8)),
              HasSubstr("the values of a head have 8 dimensions (key "
                        "\"llama.attention.value_length\"), expected those of "
                        "its keys, 16"));
  EXPECT_THAT(Refusal(Llama().Uint32("llama.rope.dimension_count", 7)),
              HasSubstr("\"llama.rope.dimension_count\" is 7, expected an "
                        "even number"));
  EXPECT_THAT(Refusal(Llama().Uint32("llama.rope.dimension_count", 18)),
              HasSubstr("expected 1 to 16"));
  EXPECT_THAT(Refusal(Llama().Uint32("llama.vocab_size", 260)),
              HasSubstr("\"llama.vocab_size\" is 260, expected the rows of "
                        "tensor \"token_embd.weight\", 259"));
}

TEST(ModelConfig, Embedding) {
  EXPECT_THAT(Refusal(Llama().RemoveTensor("token_embd.weight")),
              HasSubstr("tensor \"token_embd.weight\" is missing"));
  EXPECT_THAT(Refusal(Llama()
                          .RemoveTensor("token_embd.weight")
                          .Zeros("token_embd.weight", {32, 10})),
              HasSubstr("rows of 32 elements, expected 2 and 64"));
  EXPECT_THAT(Refusal(Llama()
                          .RemoveTensor("token_embd.weight")
                          .Zeros("token_embd.weight", {64, 2, 2})),
              HasSubstr("has 3 dimensions"));
}

TEST(ModelConfig, Floats) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::string epsilon = "llama.attention.layer_norm_rms_epsilon";
  for (const float value : {0.0f, -1e-5f, 1.0f, kNan}) {
    EXPECT_THAT(Refusal(Llama().Remove(epsilon).Float32(epsilon, value)),
                HasSubstr("key \"" + epsilon + "\" is "));
  }
  const std::string base = "llama.rope.freq_base";
  for (const float value : {0.0f, 1.0f, -10.0f, kNan, 1e30f}) {
    EXPECT_THAT(Refusal(Llama().Remove(base).Float32(base, value)),
                HasSubstr("key \"" + base + "\" is "));
  }
  for (const char* key :
       {"llama.rope.scaling.factor", "llama.rope.scale_linear"}) {
    for (const float value : {-1.0f, 1e-20f, kNan, 1e30f}) {
      EXPECT_THAT(Refusal(Llama().Float32(key, value)),
                  HasSubstr("key \"" + std::string(key) + "\" is "));
    }
  }
}

TEST(ModelConfig, UnsupportedMathematics) {
  for (const char* suffix :
       {"expert_count", "attn_logit_softcapping", "final_logit_softcapping",
        "attention.clamp_kqv", "attention.max_alibi_bias", "residual_scale",
        "embedding_scale", "logit_scale", "attention.temperature_scale",
        "rope.scaling.alpha", "rope.scaling.yarn_log_multiplier"}) {
    const std::string key = std::string("llama.") + suffix;
    EXPECT_THAT(Refusal(Llama().Float32(key, 8)),
                HasSubstr("key \"" + key + "\" is 8, which is not supported"));
  }
  EXPECT_THAT(Refusal(Llama().Bool("llama.attention.causal", false)),
              HasSubstr("\"llama.attention.causal\" is 0"));
  EXPECT_THAT(Refusal(Llama().Bool("llama.use_parallel_residual", true)),
              HasSubstr("\"llama.use_parallel_residual\" is 1"));
  EXPECT_THAT(Refusal(Llama().Float32("llama.attention.scale", 0.5f)),
              HasSubstr("\"llama.attention.scale\" is 0.5; only 0.25"));
}

TEST(ModelConfig, SlidingWindowLimitsTheContext) {
  const auto limited =
      Config(Llama().Uint32("llama.attention.sliding_window", 100));
  ASSERT_TRUE(limited.ok()) << limited.status();
  EXPECT_EQ(limited->context_length, 100);
  for (const uint32_t window : {0u, 256u, 100000u}) {
    const auto config =
        Config(Llama().Uint32("llama.attention.sliding_window", window));
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->context_length, 256);
  }
}

TEST(ModelConfig, RopeScaling) {
  const auto plain = Config(Llama());
  ASSERT_TRUE(plain.ok()) << plain.status();
  const std::vector<float>& base = plain->rope.inverse_frequency;
  const auto frequencies = [](const GgufWriter& writer) {
    const auto config = Config(writer);
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? config->rope.inverse_frequency : std::vector<float>();
  };
  std::vector<float> quarter;
  for (const float frequency : base) quarter.push_back(frequency / 4);

  // Linear by name, by the factor alone, and by the factor's old name.
  EXPECT_EQ(frequencies(Llama()
                            .String("llama.rope.scaling.type", "linear")
                            .Float32("llama.rope.scaling.factor", 4)),
            quarter);
  EXPECT_EQ(frequencies(Llama().Float32("llama.rope.scaling.factor", 4)),
            quarter);
  EXPECT_EQ(frequencies(Llama().Float32("llama.rope.scale_linear", 4)),
            quarter);
  // Factor 0 is how converters write none.
  EXPECT_EQ(frequencies(Llama().Float32("llama.rope.scaling.factor", 0)), base);
  EXPECT_EQ(frequencies(Llama()
                            .String("llama.rope.scaling.type", "none")
                            .Float32("llama.rope.scaling.factor", 4)),
            base);
  EXPECT_THAT(
      Refusal(Llama().String("llama.rope.scaling.type", "longrope")),
      HasSubstr("\"llama.rope.scaling.type\" is \"longrope\", expected none, "
                "linear or yarn"));
}

TEST(ModelConfig, Yarn) {
  const auto config =
      Config(Llama()
                 .String("llama.rope.scaling.type", "yarn")
                 .Float32("llama.rope.scaling.factor", 4)
                 .Float32("llama.rope.scaling.attn_factor", 2)
                 .Uint32("llama.rope.scaling.original_context_length", 64));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_FLOAT_EQ(config->rope.attention_factor,
                  2 * (1 + 0.1f * std::log(4.0f)));
  // The slowest pair turns less than once in 64 tokens: interpolated wholly.
  EXPECT_FLOAT_EQ(config->rope.inverse_frequency[7],
                  std::pow(10000.0f, -7.0f / 8) / 4);
}

TEST(ModelConfig, FrequencyDivisors) {
  const auto with = [](uint64_t pairs, uint32_t type, float value) {
    std::string bytes;
    for (uint64_t i = 0; i < pairs; ++i) bytes += Bytes(value);
    return Llama().Tensor({.name = "rope_freqs.weight",
                           .dims = {pairs},
                           .type = type,
                           .bytes = bytes});
  };
  const auto config = Config(with(8, 0, 2));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope.inverse_frequency[0], 0.5f);
  EXPECT_THAT(Refusal(with(7, 0, 2)),
              HasSubstr("tensor \"rope_freqs.weight\" is f32 [7], expected "
                        "f32 [8]"));
  EXPECT_THAT(Refusal(with(8, 1, 2)), HasSubstr("is f16 [8]"));
  for (const float value : {0.0f, -1.0f, std::nanf(""), 1e30f}) {
    EXPECT_THAT(Refusal(with(8, 0, value)),
                HasSubstr("tensor \"rope_freqs.weight\" is "));
  }
}

TEST(ModelConfig, NameIsMadeUtf8) {
  const auto config = Config(Llama()
                                 .Remove("general.name")
                                 .String("general.name",
                                         "a\xFF"
                                         "b"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->name,
            "a\xEF\xBF\xBD"
            "b");
}

}  // namespace
}  // namespace nibble::model
