// The type numbers of GGUF files
// (github.com/ggml-org/ggml/blob/master/docs/gguf.md) and their names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/string_view.h"
#include "kernels/quant_format.h"

namespace nibble::model {

// Types of metadata values, numbered as in the file.
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

inline constexpr uint32_t kMaxGgufType = 12;

std::string_view TypeName(GgufType type);

// Bytes of one value of a fixed size; 0 for strings and arrays.
uint64_t FixedBytes(GgufType type);

// The format of tensor type `number`; nothing when Nibble cannot compute with
// it.
std::optional<kernels::QuantFormat> FormatOfTensorType(uint32_t number);

// The number a format has in a file.
uint32_t TensorTypeOfFormat(kernels::QuantFormat format);

// "iq2_xxs (16)", or "99" when the number means nothing to ggml either.
std::string TensorTypeName(uint32_t number);

// Abseil's string_view is a type of its own here; this joins the two.
inline absl::string_view Absl(std::string_view text) {
  return {text.data(), text.size()};
}

// `text` as valid UTF-8 without control characters: it can neither break a
// message nor steer a terminal, whatever a file says. Quotes and backslashes
// are escaped.
std::string Printable(std::string_view text);

// The same in double quotes, cut when long.
std::string Quoted(std::string_view text);

}  // namespace nibble::model
