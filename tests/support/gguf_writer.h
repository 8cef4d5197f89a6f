// Writes GGUF files for tests: sound ones, and broken in every way wanted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/quant_format.h"
#include "model/gguf_types.h"
#include "model/model_config.h"

namespace nibble::test {

// One tensor to write. `bytes` is its data; the offset is chosen by the writer
// unless given.
struct TensorToWrite {
  std::string name;
  std::vector<uint64_t> dims;  // fastest first
  uint32_t type = 0;           // ggml's number, 0 is f32
  std::string bytes = {};
  std::optional<uint64_t> offset_bytes = {};
};

// Collects keys and tensors and lays them out as one file. Checks nothing:
// what a test asks for, it gets. A local of the test.
class GgufWriter final {
 public:
  // Header fields, to be changed at will; counts follow from what was added
  // unless given.
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::optional<uint64_t> num_keys;
  std::optional<uint64_t> num_tensors;
  // What the layout uses; "general.alignment" is a key like any other.
  uint64_t alignment_bytes = 32;

  // A key whose value is `payload` as it stands.
  GgufWriter& Raw(std::string_view key, uint32_t type,
                  std::string_view payload);
  GgufWriter& Uint32(std::string_view key, uint32_t value);
  GgufWriter& Int32(std::string_view key, int32_t value);
  GgufWriter& Uint64(std::string_view key, uint64_t value);
  GgufWriter& Float32(std::string_view key, float value);
  GgufWriter& Bool(std::string_view key, bool value);
  GgufWriter& String(std::string_view key, std::string_view value);
  GgufWriter& Strings(std::string_view key,
                      const std::vector<std::string>& values);
  GgufWriter& Floats(std::string_view key, const std::vector<float>& values);
  GgufWriter& Int32s(std::string_view key, const std::vector<int32_t>& values);
  // Removes every key of this name.
  GgufWriter& Remove(std::string_view key);

  GgufWriter& Tensor(TensorToWrite tensor);
  // An f32 tensor of zeros.
  GgufWriter& Zeros(std::string_view name, std::vector<uint64_t> dims);
  // Removes every tensor of this name.
  GgufWriter& RemoveTensor(std::string_view name);

  // The bytes of the file. The last tensor's data ends it: no padding.
  std::string Build() const;
  // Up to where the data begins, without the padding before it.
  std::string BuildDirectory() const;

 private:
  struct Key {
    std::string name;
    uint32_t type;
    std::string payload;
  };
  // Where each tensor's data begins, from the start of the data.
  std::vector<uint64_t> Offsets() const;

  std::vector<Key> keys_;
  std::vector<TensorToWrite> tensors_;
};

// Number `value` as its bytes, little-endian.
template <typename T>
std::string Bytes(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}

// A length and the characters, as GGUF writes a string.
std::string StringBytes(std::string_view text);

// A decoder small enough for a test to run, with random weights.
struct SmallModel {
  model::Architecture architecture = model::Architecture::kLlama;
  // Of the matrices; k-quants need hidden sizes in multiples of 256.
  kernels::QuantFormat format = kernels::QuantFormat::kQ4_0;
  int32_t layers = 2;
  int32_t hidden_size = 64;
  int32_t heads = 4;
  int32_t kv_heads = 2;
  int32_t feed_forward_size = 96;
  int32_t context_length = 256;
  bool tied_embeddings = true;
  // 256 byte tokens, then "<|endoftext|>" (BOS, unknown), "<|im_start|>" and
  // "<|im_end|>" (EOS), byte-level BPE without merges, ChatML. Without it the
  // file has no tokenizer keys.
  bool vocabulary = true;
  uint64_t seed = 1;
};

inline constexpr int32_t kSmallModelVocab = 259;

// Keys and tensors of the model, still to be changed by the test.
GgufWriter WriteSmallModel(const SmallModel& model);

// `rows` x `k` random weights of roughly unit variance over sqrt(k).
std::string RandomWeights(kernels::QuantFormat format, int64_t rows, int64_t k,
                          uint64_t seed);

// A file of this content that is deleted when it goes out of scope.
class TemporaryFile final {
 public:
  explicit TemporaryFile(std::string_view content);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace nibble::test
