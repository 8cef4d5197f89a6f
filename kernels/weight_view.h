// A weight matrix as a checkpoint holds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/quant_format.h"
#include "kernels/tensor.h"

namespace nibble::kernels {

// What a number of GPTQ's qzeros says. Files of format "gptq" (v1) hold the
// zero point less one, files of "gptq_v2" the zero point itself.
enum class GptqZeros : uint8_t { kLessOne, kPlain };

// Matrix W[n, k] (n output features, k input features) of a checkpoint; y = x
// W^T. Borrowed from the mapped file, which outlives it; no pointer need be
// aligned. By value.
//
// GGUF formats (IsBlockFormat) interleave scales and codes in one array,
// `data`: row i starts at data + i * RowBytes(format, k). The bytes were
// checked against the file's size at load.
//
// The other formats have arrays of their own, all little endian and row major.
// With g = Group() and G = Groups() = ceil(k / g), weight (i, j) in group j / g
// is:
//
//   int4    s * q + m          data u8 [n, k / 2], scales and minimums [n, G]
//   int4s   s * (q - 8)        data u8 [n, k / 2], scales [n, G]
//   awq     s * (q - z)        data i32 [k, n / 8], zeros i32 [G, n / 8],
//                              scales [G, n]
//   gptq    s * (q - z)        data i32 [k / 8, n], zeros i32 [G, n / 8],
//                              scales [G, n], g_idx i32 [k] or null
//   mxfp4   2^(e - 127) * v    data u8 [n, k / 2], scales u8 [n, G]; e = 255
//                              is NaN
//   nvfp4   tensor * e * v     data u8 [n, k / 2], scales E4M3 [n, G]
//
// A byte holds the codes of two weights along k, the first in its low half.
// An int32 holds eight, four bits each from the lowest on: of weights along k
// (gptq's data), of rows i .. i + 7 (gptq's zeros), and of rows i + 0, 2, 4, 6,
// 1, 3, 5, 7 (awq's data and zeros). v is an E2M1 number (CodeType::kE2m1).
struct WeightView {
  std::string_view name;  // the tensor's name in the file, for messages
  QuantFormat format = QuantFormat::kF32;
  int64_t n = 0;
  int64_t k = 0;
  const std::byte* data = nullptr;

  // Weights along k that share a scale where the format leaves the choice: 32,
  // 64, 128, 256, or k (one scale a row). The last group may be cut short by k,
  // except in awq.
  int64_t group_elements = 0;
  const std::byte* scales = nullptr;
  const std::byte* zeros_or_mins = nullptr;  // minimums are of scale_dtype
  DType scale_dtype = DType::kF16;           // kF16 or kBF16
  // gptq with act-order: column j belongs to group g_idx[j].
  const std::byte* g_idx = nullptr;
  GptqZeros gptq_zeros = GptqZeros::kLessOne;
  float tensor_scale = 1.0f;  // nvfp4 only

  const std::byte* Row(int64_t row) const {
    return data + row * RowBytes(format, k);
  }
  // Bytes of `data`.
  int64_t Bytes() const {
    return IsBlockFormat(format) ? n * RowBytes(format, k) : n * k / 2;
  }
  int64_t Group() const {
    const int fixed = Info(format).group_elements;
    return fixed != 0 ? fixed : group_elements;
  }
  int64_t Groups() const { return (k + Group() - 1) / Group(); }
};

// INVALID_ARGUMENT, with the tensor, the value and the limit, when a shape,
// group, group index or scale is none that the format allows. Reads every scale
// of a quantized matrix, no code.
absl::Status CheckWeight(const WeightView& weight);

// The format as tables and logs name it: "q4_k", "mxfp4", "int4-g128",
// "awq-pc" (per channel: one group a row).
std::string DisplayName(const WeightView& weight);

}  // namespace nibble::kernels
