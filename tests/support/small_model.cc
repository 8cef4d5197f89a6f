// Random decoders for tests.
#include <array>
#include <bit>
#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/utf8.h"
#include "kernels/reference/half.h"
#include "tests/support/gguf_writer.h"

namespace nibble::test {
namespace {

using kernels::QuantFormat;
using kernels::reference::FloatToBFloat16;
using kernels::reference::FloatToHalf;

constexpr int32_t kEndOfText = 256;
constexpr int32_t kImEnd = 258;

// GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for
// U+0100 and on.
std::vector<std::string> ByteTokens() {
  std::vector<std::string> tokens;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    AppendUtf8(tokens.emplace_back(), printable ? byte : next++);
  }
  return tokens;
}

void AddVocabulary(GgufWriter& writer) {
  constexpr int32_t kNormal = 1;
  constexpr int32_t kControl = 3;
  std::vector<std::string> tokens = ByteTokens();
  std::vector<int32_t> kinds(tokens.size(), kNormal);
  for (const char* special : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    tokens.emplace_back(special);
    kinds.push_back(kControl);
  }
  writer.String("tokenizer.ggml.model", "gpt2")
      .String("tokenizer.ggml.pre", "gpt-2")
      .Strings("tokenizer.ggml.tokens", tokens)
      .Int32s("tokenizer.ggml.token_type", kinds)
      .Strings("tokenizer.ggml.merges", {})
      .Uint32("tokenizer.ggml.bos_token_id", kEndOfText)
      .Uint32("tokenizer.ggml.eos_token_id", kImEnd)
      .Uint32("tokenizer.ggml.unknown_token_id", kEndOfText)
      .String("tokenizer.chat_template",
              "{% for message in messages %}{{'<|im_start|>' + "
              "message['role'] + '\n' + message['content'] + '<|im_end|>' + "
              "'\n'}}{% endfor %}{% if add_generation_prompt %}"
              "{{ '<|im_start|>assistant\n' }}{% endif %}");
}

// One FP16 number of a quantized block, at `offset` of it.
struct BlockScale {
  int offset;
  float value;
};

// Scales (and minimums) that give the format's codes, uniformly random, about
// zero mean and unit variance. Code ranges: uniform integers in [0, 2^b).
std::vector<BlockScale> BlockScales(QuantFormat format) {
  const auto unit = [](float levels) {
    return std::sqrt(12.0f) / levels;  // of `levels` equally likely codes
  };
  switch (format) {
    case QuantFormat::kQ4_0:
      return {{0, unit(16)}};
    case QuantFormat::kQ4_1:
      return {{0, unit(16)}, {2, -7.5f * unit(16)}};
    case QuantFormat::kQ5_0:
      return {{0, unit(32)}};
    case QuantFormat::kQ5_1:
      return {{0, unit(32)}, {2, -15.5f * unit(32)}};
    case QuantFormat::kQ8_0:
      return {{0, unit(256)}};
    // Their groups have 6-bit scales and minimums of mean 32.
    case QuantFormat::kQ4_K:
      return {{0, unit(16) / 32}, {2, 7.5f * unit(16) / 32}};
    case QuantFormat::kQ5_K:
      return {{0, unit(32) / 32}, {2, 15.5f * unit(32) / 32}};
    // Its groups have 8-bit signed scales.
    case QuantFormat::kQ6_K:
      return {{208, unit(64) / 64}};
    default:
      return {};
  }
}

float Normal(std::mt19937_64& random) {
  // Box and Muller's transform: std::normal_distribution differs between
  // libraries.
  const double u = (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
  const double v = static_cast<double>(random() >> 11) * 0x1p-53;
  return static_cast<float>(std::sqrt(-2 * std::log(u)) *
                            std::cos(2 * 3.14159265358979 * v));
}

std::string FloatBytes(QuantFormat format, float value) {
  switch (format) {
    case QuantFormat::kF32:
      return Bytes(value);
    case QuantFormat::kF16:
      return Bytes(FloatToHalf(value));
    default:
      return Bytes(FloatToBFloat16(value));
  }
}

// Adds the tensors of one model; a local of WriteSmallModel.
class TensorAdder final {
 public:
  TensorAdder(const SmallModel& model, GgufWriter& writer)
      : format_(model.format), seed_(model.seed), writer_(writer) {}

  void Matrix(const std::string& name, int64_t n, int64_t k) {
    writer_.Tensor(
        {.name = name,
         .dims = {static_cast<uint64_t>(k), static_cast<uint64_t>(n)},
         .type = model::TensorTypeOfFormat(format_),
         .bytes = RandomWeights(format_, n, k, ++seed_)});
  }
  // Near `mean`, f32.
  void Vector(const std::string& name, int64_t k, float mean) {
    std::mt19937_64 random(++seed_);
    std::string bytes;
    for (int64_t i = 0; i < k; ++i) {
      bytes += Bytes(mean + 0.1f * Normal(random));
    }
    writer_.Tensor({.name = name,
                    .dims = {static_cast<uint64_t>(k)},
                    .bytes = std::move(bytes)});
  }

 private:
  QuantFormat format_;
  uint64_t seed_;
  GgufWriter& writer_;
};

void AddLayer(const SmallModel& model, int32_t layer, TensorAdder& add) {
  const std::string prefix = absl::StrCat("blk.", layer, ".");
  const int64_t hidden = model.hidden_size;
  const int64_t kv = hidden / model.heads * model.kv_heads;
  add.Vector(prefix + "attn_norm.weight", hidden, 1);
  add.Matrix(prefix + "attn_q.weight", hidden, hidden);
  add.Matrix(prefix + "attn_k.weight", kv, hidden);
  add.Matrix(prefix + "attn_v.weight", kv, hidden);
  if (model.architecture == model::Architecture::kQwen2) {
    add.Vector(prefix + "attn_q.bias", hidden, 0);
    add.Vector(prefix + "attn_k.bias", kv, 0);
    add.Vector(prefix + "attn_v.bias", kv, 0);
  }
  add.Matrix(prefix + "attn_output.weight", hidden, hidden);
  add.Vector(prefix + "ffn_norm.weight", hidden, 1);
  add.Matrix(prefix + "ffn_gate.weight", model.feed_forward_size, hidden);
  add.Matrix(prefix + "ffn_up.weight", model.feed_forward_size, hidden);
  add.Matrix(prefix + "ffn_down.weight", hidden, model.feed_forward_size);
}

}  // namespace

std::string RandomWeights(QuantFormat format, int64_t rows, int64_t k,
                          uint64_t seed) {
  const kernels::FormatInfo& info = kernels::Info(format);
  NIBBLE_CHECK_EQ(k % info.block_elements, 0);
  std::mt19937_64 random(seed);
  const float scale = 1 / std::sqrt(static_cast<float>(k));
  std::string bytes;
  bytes.reserve(rows * kernels::RowBytes(format, k));
  if (info.code == kernels::CodeType::kFloat) {
    for (int64_t i = 0; i < rows * k; ++i) {
      bytes += FloatBytes(format, scale * Normal(random));
    }
    return bytes;
  }
  const std::vector<BlockScale> scales = BlockScales(format);
  for (int64_t i = 0; i < rows * k / info.block_elements; ++i) {
    std::string block;
    for (int j = 0; j < info.block_bytes; ++j) {
      block += static_cast<char>(random() >> 56);
    }
    for (const BlockScale& entry : scales) {
      // Differs from block to block, by up to a factor of two.
      const float vary = 0.75f + 0.5f * static_cast<float>(random() % 2);
      block.replace(entry.offset, 2,
                    Bytes(FloatToHalf(scale * vary * entry.value)));
    }
    bytes += block;
  }
  return bytes;
}

GgufWriter WriteSmallModel(const SmallModel& model) {
  GgufWriter writer;
  const std::string arch(model::Name(model.architecture));
  writer.String("general.architecture", arch)
      .String("general.name", "small random model")
      .Uint32(arch + ".block_count", model.layers)
      .Uint32(arch + ".context_length", model.context_length)
      .Uint32(arch + ".embedding_length", model.hidden_size)
      .Uint32(arch + ".feed_forward_length", model.feed_forward_size)
      .Uint32(arch + ".attention.head_count", model.heads)
      .Uint32(arch + ".attention.head_count_kv", model.kv_heads)
      .Float32(arch + ".attention.layer_norm_rms_epsilon", 1e-5f)
      .Float32(arch + ".rope.freq_base", 10000.0f);
  if (model.vocabulary) AddVocabulary(writer);
  TensorAdder add(model, writer);
  add.Matrix("token_embd.weight", kSmallModelVocab, model.hidden_size);
  for (int32_t i = 0; i < model.layers; ++i) AddLayer(model, i, add);
  add.Vector("output_norm.weight", model.hidden_size, 1);
  if (!model.tied_embeddings) {
    add.Matrix("output.weight", kSmallModelVocab, model.hidden_size);
  }
  return writer;
}

}  // namespace nibble::test
