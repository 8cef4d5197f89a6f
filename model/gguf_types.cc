#include "model/gguf_types.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/utf8.h"

namespace nibble::model {
namespace {

using kernels::QuantFormat;

struct TensorType {
  uint32_t number;
  std::string_view name;
  std::optional<QuantFormat> format;
};

// enum ggml_type of ggml.h. Types without a format are refused by name.
constexpr std::array kTensorTypes = {
    TensorType{0, "f32", QuantFormat::kF32},
    TensorType{1, "f16", QuantFormat::kF16},
    TensorType{2, "q4_0", QuantFormat::kQ4_0},
    TensorType{3, "q4_1", QuantFormat::kQ4_1},
    TensorType{4, "q4_2", {}},
    TensorType{5, "q4_3", {}},
    TensorType{6, "q5_0", QuantFormat::kQ5_0},
    TensorType{7, "q5_1", QuantFormat::kQ5_1},
    TensorType{8, "q8_0", QuantFormat::kQ8_0},
    TensorType{9, "q8_1", {}},
    TensorType{10, "q2_k", {}},
    TensorType{11, "q3_k", {}},
    TensorType{12, "q4_k", QuantFormat::kQ4_K},
    TensorType{13, "q5_k", QuantFormat::kQ5_K},
    TensorType{14, "q6_k", QuantFormat::kQ6_K},
    TensorType{15, "q8_k", {}},
    TensorType{16, "iq2_xxs", {}},
    TensorType{17, "iq2_xs", {}},
    TensorType{18, "iq3_xxs", {}},
    TensorType{19, "iq1_s", {}},
    TensorType{20, "iq4_nl", {}},
    TensorType{21, "iq3_s", {}},
    TensorType{22, "iq2_s", {}},
    TensorType{23, "iq4_xs", {}},
    TensorType{24, "i8", {}},
    TensorType{25, "i16", {}},
    TensorType{26, "i32", {}},
    TensorType{27, "i64", {}},
    TensorType{28, "f64", {}},
    TensorType{29, "iq1_m", {}},
    TensorType{30, "bf16", QuantFormat::kBF16},
    TensorType{31, "q4_0_4_4", {}},
    TensorType{32, "q4_0_4_8", {}},
    TensorType{33, "q4_0_8_8", {}},
    TensorType{34, "tq1_0", {}},
    TensorType{35, "tq2_0", {}},
    TensorType{36, "iq4_nl_4_4", {}},
    TensorType{37, "iq4_nl_4_8", {}},
    TensorType{38, "iq4_nl_8_8", {}},
    TensorType{39, "mxfp4", {}},
    TensorType{40, "nvfp4", {}},
};

const TensorType* FindTensorType(uint32_t number) {
  for (const TensorType& type : kTensorTypes) {
    if (type.number == number) return &type;
  }
  return nullptr;
}

}  // namespace

std::string_view TypeName(GgufType type) {
  constexpr std::array<std::string_view, kMaxGgufType + 1> kNames = {
      "uint8",   "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
      "boolean", "string", "array",  "uint64", "int64",  "float64"};
  return kNames.at(static_cast<size_t>(type));
}

uint64_t FixedBytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

std::optional<QuantFormat> FormatOfTensorType(uint32_t number) {
  const TensorType* type = FindTensorType(number);
  return type == nullptr ? std::nullopt : type->format;
}

uint32_t TensorTypeOfFormat(QuantFormat format) {
  for (const TensorType& type : kTensorTypes) {
    if (type.format == format) return type.number;
  }
  return UINT32_MAX;
}

std::string TensorTypeName(uint32_t number) {
  const TensorType* type = FindTensorType(number);
  return type == nullptr ? absl::StrCat(number)
                         : absl::StrCat(Absl(type->name), " (", number, ")");
}

std::string Printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Unit unit = NextUtf8(text);
    const uint32_t c = unit.code_point;
    if (unit.kind != Utf8Unit::kCharacter) {
      out += kReplacementCharacter;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c < 0x20 || (c >= 0x7F && c < 0xA0)) {  // C0, DEL, C1
      absl::StrAppendFormat(&out, "\\u%04x", c);
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += text.substr(0, unit.length);
    }
    text.remove_prefix(unit.length);
  }
  return out;
}

std::string Quoted(std::string_view text) {
  constexpr size_t kLongest = 80;  // bytes shown
  std::string_view shown = text.substr(0, kLongest);
  if (shown.size() < text.size()) {
    shown.remove_suffix(IncompleteUtf8Tail(shown));
  }
  return absl::StrCat("\"", Printable(shown),
                      shown.size() < text.size() ? "...\"" : "\"");
}

}  // namespace nibble::model
