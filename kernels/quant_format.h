// The storage formats of weights, one constexpr row each. Tests and benches
// enumerate kAllFormats; a new format is a row here, a reference dequantizer,
// a CPU file and a CUDA tile loader.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace nibble::kernels {

enum class QuantFormat : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};

enum class CodeType : uint8_t { kFloat, kInt4, kInt5, kInt6, kInt8 };

// What is added to scale * code: nothing, a constant offset folded into the
// code (symmetric formats), or a minimum of its own per group.
enum class OffsetType : uint8_t { kNone, kCentred, kMinimum };

// One row of the format table. Sizes follow the GGUF specification (ggml's
// block structs), little endian.
struct FormatInfo {
  QuantFormat format;
  std::string_view name;  // as GGUF and our CSV files spell it, lower case
  int block_elements;     // weights along K that share one block
  int block_bytes;        // bytes of one block in the file
  int group_elements;     // weights along K that share one scale
  CodeType code;
  OffsetType offset;
};

inline constexpr std::array kFormatTable = {
    FormatInfo{QuantFormat::kF32, "f32", 1, 4, 1, CodeType::kFloat,
               OffsetType::kNone},
    FormatInfo{QuantFormat::kF16, "f16", 1, 2, 1, CodeType::kFloat,
               OffsetType::kNone},
    FormatInfo{QuantFormat::kBF16, "bf16", 1, 2, 1, CodeType::kFloat,
               OffsetType::kNone},
    FormatInfo{QuantFormat::kQ4_0, "q4_0", 32, 18, 32, CodeType::kInt4,
               OffsetType::kCentred},
    FormatInfo{QuantFormat::kQ4_1, "q4_1", 32, 20, 32, CodeType::kInt4,
               OffsetType::kMinimum},
    FormatInfo{QuantFormat::kQ5_0, "q5_0", 32, 22, 32, CodeType::kInt5,
               OffsetType::kCentred},
    FormatInfo{QuantFormat::kQ5_1, "q5_1", 32, 24, 32, CodeType::kInt5,
               OffsetType::kMinimum},
    FormatInfo{QuantFormat::kQ8_0, "q8_0", 32, 34, 32, CodeType::kInt8,
               OffsetType::kNone},
    FormatInfo{QuantFormat::kQ4_K, "q4_k", 256, 144, 32, CodeType::kInt4,
               OffsetType::kMinimum},
    FormatInfo{QuantFormat::kQ5_K, "q5_k", 256, 176, 32, CodeType::kInt5,
               OffsetType::kMinimum},
    FormatInfo{QuantFormat::kQ6_K, "q6_k", 256, 210, 16, CodeType::kInt6,
               OffsetType::kCentred},
};

inline constexpr int kNumFormats = static_cast<int>(kFormatTable.size());

constexpr const FormatInfo& Info(QuantFormat format) {
  return kFormatTable[static_cast<size_t>(format)];
}

constexpr std::string_view Name(QuantFormat format) {
  return Info(format).name;
}

constexpr std::optional<QuantFormat> FormatByName(std::string_view name) {
  for (const FormatInfo& row : kFormatTable) {
    if (row.name == name) return row.format;
  }
  return std::nullopt;
}

// Bytes of one row of k weights; k must be a multiple of block_elements.
constexpr int64_t RowBytes(QuantFormat format, int64_t k) {
  return k / Info(format).block_elements * Info(format).block_bytes;
}

}  // namespace nibble::kernels
