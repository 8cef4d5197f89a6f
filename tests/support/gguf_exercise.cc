#include "tests/support/gguf_exercise.h"

#include "base/check.h"
#include "base/status.h"
#include "model/gguf.h"
#include "model/model_config.h"
#include "model/tokenizer_metadata.h"
#include "tests/support/gguf_writer.h"

namespace nibble::test {
namespace {

// A model of the smallest sizes, so that mutations hit its directory.
SmallModel Tiny() {
  return {.format = kernels::QuantFormat::kQ4_0,
          .layers = 1,
          .hidden_size = 32,
          .heads = 2,
          .kv_heads = 1,
          .feed_forward_size = 32,
          .vocabulary = false};
}

}  // namespace

absl::Status ExerciseGguf(std::span<const std::byte> bytes) {
  const auto file = model::GgufFile::Parse(bytes, "fuzz.gguf");
  if (!file.ok()) return file.status();
  size_t shown_bytes = 0;
  for (const model::GgufKey& key : file->keys()) {
    shown_bytes += model::ToString(key.value).size();
    NIBBLE_CHECK(file->Find(key.name) != nullptr);
  }
  NIBBLE_CHECK(file->keys().empty() || shown_bytes > 0);
  unsigned sum = 0;
  for (const model::GgufTensor& tensor : file->tensors()) {
    const kernels::WeightView view = tensor.View();
    NIBBLE_CHECK_EQ(static_cast<size_t>(view.Bytes()), tensor.bytes.size());
    sum += std::to_integer<unsigned>(view.data[0]) +
           std::to_integer<unsigned>(view.data[view.Bytes() - 1]);
  }
  NIBBLE_CHECK(sum <= 2 * 255u * file->tensors().size());
  const auto config = model::ReadModelConfig(*file);
  const auto tokenizer = model::ReadTokenizerData(*file);
  NIBBLE_RETURN_IF_ERROR(config.status());
  return tokenizer.status();
}

std::vector<std::string> GgufSeeds() {
  std::vector<std::string> seeds;
  seeds.push_back(GgufWriter().Build());
  seeds.push_back(WriteSmallModel(Tiny()).Build());
  SmallModel qwen = Tiny();
  qwen.architecture = model::Architecture::kQwen2;
  qwen.tied_embeddings = false;
  qwen.vocabulary = true;
  seeds.push_back(WriteSmallModel(qwen).Build());
  GgufWriter kinds;
  kinds.version = 2;
  kinds.Uint32("general.alignment", 64)
      .Int32("int32", -1)
      .Uint64("uint64", UINT64_MAX)
      .Bool("bool", true)
      .Float32("float32", 0.5f)
      .Strings("strings", {"", "a", "\xF0\x9F\x98\x80"})
      .Floats("floats", {1, 2, 3})
      .Int32s("int32s", {-1, 0, 1})
      .Zeros("four dims", {2, 3, 4, 5})
      .Zeros("one dim", {1});
  kinds.alignment_bytes = 64;
  seeds.push_back(kinds.Build());
  GgufWriter rope = WriteSmallModel(Tiny());
  rope.String("llama.rope.scaling.type", "yarn")
      .Float32("llama.rope.scaling.factor", 4)
      .Uint32("llama.rope.scaling.original_context_length", 64)
      .Tensor({.name = "rope_freqs.weight",
               .dims = {8},
               .bytes = std::string(32, '\x40')});
  seeds.push_back(rope.Build());
  return seeds;
}

}  // namespace nibble::test
