// The storage formats of weights, one constexpr row each. Tests and benches
// enumerate the two tables; a new format is a row here, a reference
// dequantizer, and code to pack it in each backend that runs it.
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
  // Codes, scales and offsets in arrays of their own (weight_view.h).
  kInt4,     // scale and minimum
  kInt4Sym,  // scale
  kAwq,      // AutoAWQ's GEMM layout: scale and integer zero point
  kGptq,     // AutoGPTQ's layout: scale and integer zero point, act-order
  kMxfp4,    // OCP Microscaling Formats (MX) Specification v1.0
  kNvfp4,    // NVIDIA's FP4: an E4M3 scale per 16, an FP32 one per tensor
};

// kE2m1: sign, two exponent bits (bias 1), one mantissa bit.
enum class CodeType : uint8_t { kFloat, kInt4, kInt5, kInt6, kInt8, kE2m1 };

// What is added to scale * code: nothing, a constant offset folded into the
// code (symmetric formats), a minimum of its own per group, or an integer zero
// point subtracted from the code before it is scaled.
enum class OffsetType : uint8_t { kNone, kCentred, kMinimum, kZeroPoint };

// One row of a format table. Sizes follow the GGUF specification (ggml's block
// structs), little endian.
struct FormatInfo {
  QuantFormat format;
  std::string_view name;  // as GGUF and our CSV files spell it, lower case
  int block_elements;     // weights that share one block
  int block_bytes;        // bytes of one block in the file
  int group_elements;     // weights along K that share one scale; 0: a choice
  CodeType code;
  OffsetType offset;
};

// The formats of GGUF files: blocks along K that hold codes and scales.
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

// The formats whose codes, scales and offsets are separate arrays. A block is
// one word of codes: a byte or an int32.
inline constexpr std::array kGroupFormatTable = {
    FormatInfo{QuantFormat::kInt4, "int4", 2, 1, 0, CodeType::kInt4,
               OffsetType::kMinimum},
    FormatInfo{QuantFormat::kInt4Sym, "int4s", 2, 1, 0, CodeType::kInt4,
               OffsetType::kCentred},
    FormatInfo{QuantFormat::kAwq, "awq", 8, 4, 0, CodeType::kInt4,
               OffsetType::kZeroPoint},
    FormatInfo{QuantFormat::kGptq, "gptq", 8, 4, 0, CodeType::kInt4,
               OffsetType::kZeroPoint},
    FormatInfo{QuantFormat::kMxfp4, "mxfp4", 2, 1, 32, CodeType::kE2m1,
               OffsetType::kNone},
    FormatInfo{QuantFormat::kNvfp4, "nvfp4", 2, 1, 16, CodeType::kE2m1,
               OffsetType::kNone},
};

inline constexpr int kNumBlockFormats = static_cast<int>(kFormatTable.size());
inline constexpr int kNumFormats =
    kNumBlockFormats + static_cast<int>(kGroupFormatTable.size());

// Whether a WeightView of the format is one array of blocks (kFormatTable).
constexpr bool IsBlockFormat(QuantFormat format) {
  return static_cast<int>(format) < kNumBlockFormats;
}

constexpr const FormatInfo& Info(QuantFormat format) {
  const auto index = static_cast<size_t>(format);
  return IsBlockFormat(format) ? kFormatTable[index]
                               : kGroupFormatTable[index - kNumBlockFormats];
}

constexpr std::string_view Name(QuantFormat format) {
  return Info(format).name;
}

constexpr std::optional<QuantFormat> FormatByName(std::string_view name) {
  for (const FormatInfo& row : kFormatTable) {
    if (row.name == name) return row.format;
  }
  for (const FormatInfo& row : kGroupFormatTable) {
    if (row.name == name) return row.format;
  }
  return std::nullopt;
}

// Bytes of one row of k weights of a block format; k must be a multiple of
// block_elements.
constexpr int64_t RowBytes(QuantFormat format, int64_t k) {
  return k / Info(format).block_elements * Info(format).block_bytes;
}

}  // namespace nibble::kernels
