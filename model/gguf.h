// GGUF files, versions 2 and 3, little-endian
// (github.com/ggml-org/ggml/blob/master/docs/gguf.md): the directory of
// metadata and tensors, checked whole before anything reads through it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/weight_view.h"
#include "model/gguf_types.h"

namespace nibble::model {

// One metadata value as it lies in the file. Borrowed from the file's bytes.
struct GgufValue {
  GgufType type = GgufType::kUint8;
  GgufType element = GgufType::kUint8;  // of an array
  uint64_t count = 1;                   // elements of an array
  // The number, the characters of the string, or all elements of the array
  // (strings with their lengths before them).
  std::span<const std::byte> bytes;
};

struct GgufKey {
  std::string_view name;
  GgufValue value;
};

// One tensor of the directory. Borrowed from the file's bytes.
struct GgufTensor {
  std::string_view name;
  kernels::QuantFormat format = kernels::QuantFormat::kF32;
  uint32_t num_dims = 0;             // 1 to 4
  std::array<int64_t, 4> dims = {};  // fastest first; 1 beyond num_dims
  uint64_t offset_bytes = 0;         // from the start of the file
  std::span<const std::byte> bytes;  // the weights

  // As a matrix [n, k]: k = dims[0], n all the others.
  kernels::WeightView View() const;
  int64_t elements() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
};

// What a number in a file may be, both ends included.
template <typename T>
struct GgufRange {
  T min;
  T max;
};

// The directory of one GGUF file and typed access to its metadata. Borrows the
// bytes it was parsed from; immutable, thread-safe.
//
// Once Parse has said yes: every string, array and tensor lies inside the
// file, names are distinct, valid UTF-8 and of bounded length, tensors have
// positive dims in whole blocks, are aligned and do not overlap.
class GgufFile final {
 public:
  // `path` is for messages only. INVALID_ARGUMENT names the file and the key
  // or tensor that is wrong. Takes time linear in the directory.
  static absl::StatusOr<GgufFile> Parse(std::span<const std::byte> bytes,
                                        std::string path);

  const std::string& path() const { return path_; }
  uint32_t version() const { return version_; }
  uint32_t alignment_bytes() const { return alignment_; }
  // In the order of the file.
  const std::vector<GgufKey>& keys() const { return keys_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  // Null when absent.
  const GgufValue* Find(std::string_view key) const;
  const GgufTensor* FindTensor(std::string_view name) const;

  // Each getter says NOT_FOUND when the key is missing and INVALID_ARGUMENT
  // when its type or value is not what was expected; the Or forms take a
  // missing key for `fallback`.

  // Any integer type.
  absl::StatusOr<int64_t> Integer(std::string_view key,
                                  GgufRange<int64_t> range) const;
  absl::StatusOr<int64_t> IntegerOr(std::string_view key, int64_t fallback,
                                    GgufRange<int64_t> range) const;
  // Any number; must be finite.
  absl::StatusOr<double> Number(std::string_view key,
                                GgufRange<double> range) const;
  absl::StatusOr<double> NumberOr(std::string_view key, double fallback,
                                  GgufRange<double> range) const;
  absl::StatusOr<bool> BoolOr(std::string_view key, bool fallback) const;
  absl::StatusOr<std::string_view> String(std::string_view key) const;
  absl::StatusOr<std::string_view> StringOr(std::string_view key,
                                            std::string_view fallback) const;
  absl::StatusOr<std::vector<std::string_view>> Strings(
      std::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> Integers(std::string_view key,
                                                GgufRange<int64_t> range) const;
  // Float or integer elements; must be finite.
  absl::StatusOr<std::vector<float>> Floats(std::string_view key) const;

  // INVALID_ARGUMENT "<path>: key "<key>" <what>".
  absl::Status KeyError(std::string_view key, std::string_view what) const;

 private:
  GgufFile() = default;
  friend class GgufParser;

  absl::StatusOr<const GgufValue*> Get(std::string_view key,
                                       std::string_view expected) const;
  absl::StatusOr<const GgufValue*> GetArray(std::string_view key,
                                            std::string_view expected) const;

  std::string path_;
  uint32_t version_ = 0;
  uint32_t alignment_ = 0;
  std::vector<GgufKey> keys_;
  std::vector<GgufTensor> tensors_;
  // Abseil's hash is salted: no file can be made to collide.
  absl::flat_hash_map<absl::string_view, size_t> key_index_;
  absl::flat_hash_map<absl::string_view, size_t> tensor_index_;
};

// "int32 value", "array of 3 string values": a value's type for a message.
std::string Describe(const GgufValue& value);

// The value as text, for people: long strings and arrays are cut.
std::string ToString(const GgufValue& value);

}  // namespace nibble::model
