// Typed access to the metadata of a GgufFile.
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "model/byte_reader.h"
#include "model/gguf.h"

namespace nibble::model {
namespace {

std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A number of the file in the widest type of its kind.
using AnyNumber = std::variant<int64_t, uint64_t, double>;

template <typename T, typename Wide>
AnyNumber Load(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return static_cast<Wide>(value);
}

// Nothing when the type is no number.
std::optional<AnyNumber> LoadNumber(GgufType type, const std::byte* data) {
  switch (type) {
    case GgufType::kUint8:
      return Load<uint8_t, uint64_t>(data);
    case GgufType::kInt8:
      return Load<int8_t, int64_t>(data);
    case GgufType::kUint16:
      return Load<uint16_t, uint64_t>(data);
    case GgufType::kInt16:
      return Load<int16_t, int64_t>(data);
    case GgufType::kUint32:
      return Load<uint32_t, uint64_t>(data);
    case GgufType::kInt32:
      return Load<int32_t, int64_t>(data);
    case GgufType::kUint64:
      return Load<uint64_t, uint64_t>(data);
    case GgufType::kInt64:
      return Load<int64_t, int64_t>(data);
    case GgufType::kFloat32:
      return Load<float, double>(data);
    case GgufType::kFloat64:
      return Load<double, double>(data);
    case GgufType::kBool:
    case GgufType::kString:
    case GgufType::kArray:
      return std::nullopt;
  }
  return std::nullopt;
}

std::string NumberText(const AnyNumber& number) {
  return std::visit([](auto value) { return absl::StrCat(value); }, number);
}

double AsDouble(const AnyNumber& number) {
  return std::visit([](auto value) { return static_cast<double>(value); },
                    number);
}

bool IsInteger(GgufType type) {
  return FixedBytes(type) != 0 && type != GgufType::kFloat32 &&
         type != GgufType::kFloat64 && type != GgufType::kBool;
}

// Nothing when it is beyond int64_t. `number` is no double.
std::optional<int64_t> AsInt64(const AnyNumber& number) {
  if (const auto* value = std::get_if<int64_t>(&number)) return *value;
  const auto* value = std::get_if<uint64_t>(&number);
  if (value == nullptr || *value > static_cast<uint64_t>(INT64_MAX)) {
    return std::nullopt;
  }
  return static_cast<int64_t>(*value);
}

// "is 7, expected 1 to 5".
template <typename T>
std::string RangeText(const AnyNumber& number, GgufRange<T> range) {
  return absl::StrCat("is ", NumberText(number), ", expected ", range.min,
                      " to ", range.max);
}

std::string ElementText(uint64_t index, const std::string& what) {
  return absl::StrCat("at index ", index, " ", what);
}

}  // namespace

const GgufValue* GgufFile::Find(std::string_view key) const {
  const auto it = key_index_.find(Absl(key));
  return it == key_index_.end() ? nullptr : &keys_[it->second].value;
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto it = tensor_index_.find(Absl(name));
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

absl::Status GgufFile::KeyError(std::string_view key,
                                std::string_view what) const {
  return absl::InvalidArgumentError(
      absl::StrCat(path_, ": key ", Quoted(key), " ", Absl(what)));
}

absl::StatusOr<const GgufValue*> GgufFile::Get(
    std::string_view key, std::string_view expected) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) {
    return absl::NotFoundError(absl::StrCat(path_, ": key ", Quoted(key),
                                            " is missing, expected ",
                                            Absl(expected)));
  }
  return value;
}

absl::StatusOr<const GgufValue*> GgufFile::GetArray(
    std::string_view key, std::string_view expected) const {
  NIBBLE_ASSIGN_OR_RETURN(const GgufValue* value, Get(key, expected));
  if (value->type != GgufType::kArray) {
    return KeyError(key, absl::StrCat("is ", Describe(*value), ", expected ",
                                      Absl(expected)));
  }
  return value;
}

absl::StatusOr<int64_t> GgufFile::Integer(std::string_view key,
                                          GgufRange<int64_t> range) const {
  NIBBLE_ASSIGN_OR_RETURN(const GgufValue* value, Get(key, "an integer"));
  if (!IsInteger(value->type)) {
    return KeyError(
        key, absl::StrCat("is ", Describe(*value), ", expected an integer"));
  }
  const AnyNumber number = *LoadNumber(value->type, value->bytes.data());
  const auto integer = AsInt64(number);
  if (!integer || *integer < range.min || *integer > range.max) {
    return KeyError(key, RangeText(number, range));
  }
  return *integer;
}

absl::StatusOr<int64_t> GgufFile::IntegerOr(std::string_view key,
                                            int64_t fallback,
                                            GgufRange<int64_t> range) const {
  if (Find(key) == nullptr) return fallback;
  return Integer(key, range);
}

absl::StatusOr<double> GgufFile::Number(std::string_view key,
                                        GgufRange<double> range) const {
  NIBBLE_ASSIGN_OR_RETURN(const GgufValue* value, Get(key, "a number"));
  const auto number = LoadNumber(value->type, value->bytes.data());
  if (!number) {
    return KeyError(
        key, absl::StrCat("is ", Describe(*value), ", expected a number"));
  }
  const double result = AsDouble(*number);
  // Written so that a NaN is refused.
  if (!(result >= range.min && result <= range.max) || std::isinf(result)) {
    return KeyError(key, RangeText(*number, range));
  }
  return result;
}

absl::StatusOr<double> GgufFile::NumberOr(std::string_view key, double fallback,
                                          GgufRange<double> range) const {
  if (Find(key) == nullptr) return fallback;
  return Number(key, range);
}

absl::StatusOr<bool> GgufFile::BoolOr(std::string_view key,
                                      bool fallback) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return fallback;
  if (value->type != GgufType::kBool) {
    return KeyError(
        key, absl::StrCat("is ", Describe(*value), ", expected a boolean"));
  }
  return value->bytes[0] == std::byte{1};
}

absl::StatusOr<std::string_view> GgufFile::String(std::string_view key) const {
  NIBBLE_ASSIGN_OR_RETURN(const GgufValue* value, Get(key, "a string"));
  if (value->type != GgufType::kString) {
    return KeyError(
        key, absl::StrCat("is ", Describe(*value), ", expected a string"));
  }
  return AsText(value->bytes);
}

absl::StatusOr<std::string_view> GgufFile::StringOr(
    std::string_view key, std::string_view fallback) const {
  if (Find(key) == nullptr) return fallback;
  return String(key);
}

absl::StatusOr<std::vector<std::string_view>> GgufFile::Strings(
    std::string_view key) const {
  constexpr std::string_view kExpected = "an array of strings";
  NIBBLE_ASSIGN_OR_RETURN(const GgufValue* value, GetArray(key, kExpected));
  if (value->element != GgufType::kString) {
    return KeyError(key, absl::StrCat("is ", Describe(*value), ", expected ",
                                      Absl(kExpected)));
  }
  std::vector<std::string_view> strings;
  strings.reserve(value->count);  // bounded by Parse: 8 bytes each in the file
  ByteReader reader(value->bytes);
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto length = reader.Read<uint64_t>();
    NIBBLE_CHECK(length.has_value());  // Parse walked the array already
    const auto bytes = reader.Take(*length);
    NIBBLE_CHECK(bytes.has_value());
    strings.push_back(AsText(*bytes));
  }
  return strings;
}

absl::StatusOr<std::vector<int64_t>> GgufFile::Integers(
    std::string_view key, GgufRange<int64_t> range) const {
  constexpr std::string_view kExpected = "an array of integers";
  NIBBLE_ASSIGN_OR_RETURN(const GgufValue* value, GetArray(key, kExpected));
  if (!IsInteger(value->element)) {
    return KeyError(key, absl::StrCat("is ", Describe(*value), ", expected ",
                                      Absl(kExpected)));
  }
  std::vector<int64_t> integers(value->count);
  const uint64_t stride = FixedBytes(value->element);
  for (uint64_t i = 0; i < value->count; ++i) {
    const AnyNumber number =
        *LoadNumber(value->element, value->bytes.data() + i * stride);
    const auto integer = AsInt64(number);
    if (!integer || *integer < range.min || *integer > range.max) {
      return KeyError(key, ElementText(i, RangeText(number, range)));
    }
    integers[i] = *integer;
  }
  return integers;
}

absl::StatusOr<std::vector<float>> GgufFile::Floats(
    std::string_view key) const {
  constexpr std::string_view kExpected = "an array of numbers";
  NIBBLE_ASSIGN_OR_RETURN(const GgufValue* value, GetArray(key, kExpected));
  if (value->element == GgufType::kString ||
      value->element == GgufType::kBool) {
    return KeyError(key, absl::StrCat("is ", Describe(*value), ", expected ",
                                      Absl(kExpected)));
  }
  std::vector<float> floats(value->count);
  const uint64_t stride = FixedBytes(value->element);
  for (uint64_t i = 0; i < value->count; ++i) {
    const AnyNumber number =
        *LoadNumber(value->element, value->bytes.data() + i * stride);
    const double wide = AsDouble(number);
    // Written so that a NaN is refused; the cast of more would be undefined.
    if (!(std::abs(wide) <= std::numeric_limits<float>::max())) {
      return KeyError(key,
                      ElementText(i, absl::StrCat("is ", NumberText(number),
                                                  ", expected a finite "
                                                  "float32")));
    }
    floats[i] = static_cast<float>(wide);
  }
  return floats;
}

std::string Describe(const GgufValue& value) {
  if (value.type == GgufType::kArray) {
    return absl::StrCat("an array of ", value.count, " ",
                        Absl(TypeName(value.element)), " values");
  }
  return absl::StrCat("a value of type ", Absl(TypeName(value.type)));
}

std::string ToString(const GgufValue& value) {
  if (value.type == GgufType::kString) return Quoted(AsText(value.bytes));
  if (value.type == GgufType::kBool) {
    return value.bytes[0] == std::byte{1} ? "true" : "false";
  }
  if (value.type != GgufType::kArray) {
    return NumberText(*LoadNumber(value.type, value.bytes.data()));
  }
  constexpr uint64_t kShown = 8;  // elements
  std::string text = "[";
  ByteReader reader(value.bytes);
  for (uint64_t i = 0; i < value.count; ++i) {
    if (i > 0) text += ", ";
    if (i == kShown) {
      absl::StrAppend(&text, "... ", value.count, " values");
      break;
    }
    GgufValue element;
    element.type = value.element;
    const uint64_t length = value.element == GgufType::kString
                                ? *reader.Read<uint64_t>()
                                : FixedBytes(value.element);
    element.bytes = *reader.Take(length);
    text += ToString(element);
  }
  return text + "]";
}

}  // namespace nibble::model
