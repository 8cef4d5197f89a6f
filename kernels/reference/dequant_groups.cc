// Layouts: kernels/weight_view.h. They were written from: AutoAWQ's
// WQLinear_GEMM (awq/modules/linear/gemm.py, order_map); AutoGPTQ's
// QuantLinear (nn_modules/qlinear/qlinear_cuda.py, which stores zeros - 1) and
// GPTQModel (utils/model.py, convert_gptq_v1_to_v2_format: v2 stores them as
// they are); the OCP Microscaling Formats (MX) Specification v1.0; NVIDIA's
// TensorRT Model Optimizer for NVFP4 (the even column in the low half).
#include <array>

#include "base/check.h"
#include "kernels/little_endian.h"
#include "kernels/reference/dequant.h"
#include "kernels/reference/half.h"
#include "kernels/reference/minifloat.h"

namespace nibble::kernels::reference {
namespace {

// Four bits of an int32.
int Nibble(const std::byte* words, int64_t word, int64_t nibble) {
  return static_cast<int>(Load32(words + 4 * word) >> (4 * nibble) & 15);
}

// Which nibble of AWQ's int32 holds row r of its eight: the inverse of 0, 2, 4,
// 6, 1, 3, 5, 7.
constexpr std::array<int, 8> kAwqNibble = {0, 4, 1, 5, 2, 6, 3, 7};

// W(row, j)'s code.
int CodeAt(const WeightView& w, int64_t row, int64_t j) {
  switch (w.format) {
    case QuantFormat::kAwq:
      return Nibble(w.data, j * (w.n / 8) + row / 8, kAwqNibble[row % 8]);
    case QuantFormat::kGptq:
      return Nibble(w.data, j / 8 * w.n + row, j % 8);
    default: {
      const uint8_t byte = Load8(w.data + row * (w.k / 2) + j / 2);
      return j % 2 == 0 ? byte & 15 : byte >> 4;
    }
  }
}

int64_t GroupOf(const WeightView& w, int64_t j) {
  if (w.g_idx != nullptr) return static_cast<int32_t>(Load32(w.g_idx + 4 * j));
  return j / w.Group();
}

float Scale16(const WeightView& w, const std::byte* array, int64_t index) {
  const uint16_t bits = Load16(array + 2 * index);
  return w.scale_dtype == DType::kBF16 ? BFloat16ToFloat(bits)
                                       : HalfToFloat(bits);
}

int ZeroPoint(const WeightView& w, int64_t row, int64_t group) {
  const int64_t word = group * (w.n / 8) + row / 8;
  if (w.format == QuantFormat::kAwq) {
    return Nibble(w.zeros_or_mins, word, kAwqNibble[row % 8]);
  }
  const int stored = Nibble(w.zeros_or_mins, word, row % 8);
  return w.gptq_zeros == GptqZeros::kLessOne ? stored + 1 : stored;
}

float WeightAt(const WeightView& w, int64_t row, int64_t j) {
  const int code = CodeAt(w, row, j);
  const int64_t group = GroupOf(w, j);
  const int64_t by_row = row * w.Groups() + group;
  switch (w.format) {
    case QuantFormat::kInt4:
      return Scale16(w, w.scales, by_row) * static_cast<float>(code) +
             Scale16(w, w.zeros_or_mins, by_row);
    case QuantFormat::kInt4Sym:
      return Scale16(w, w.scales, by_row) * static_cast<float>(code - 8);
    case QuantFormat::kAwq:
    case QuantFormat::kGptq:
      return Scale16(w, w.scales, group * w.n + row) *
             static_cast<float>(code - ZeroPoint(w, row, group));
    case QuantFormat::kMxfp4:
      return E8m0ToFloat(Load8(w.scales + by_row)) * E2m1ToFloat(code);
    case QuantFormat::kNvfp4:
      return w.tensor_scale *
             (E4m3ToFloat(Load8(w.scales + by_row)) * E2m1ToFloat(code));
    default:
      break;
  }
  ::nibble::internal::CheckFailed(__FILE__, __LINE__, "a format of blocks");
}

}  // namespace

void DequantizeRow(const WeightView& weight, int64_t row, float* out) {
  NIBBLE_CHECK(row >= 0 && row < weight.n);
  if (IsBlockFormat(weight.format)) {
    return DequantizeRow(weight.format, weight.Row(row), weight.k, out);
  }
  for (int64_t j = 0; j < weight.k; ++j) out[j] = WeightAt(weight, row, j);
}

}  // namespace nibble::kernels::reference
