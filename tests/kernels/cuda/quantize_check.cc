// Judges quantized activations: bit for bit where arithmetic is exact, by
// bounds on the sums of norms and on the exponential of SiLU elsewhere.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "base/checked_math.h"
#include "kernels/reference/ops.h"
#include "kernels/reference/quantize.h"
#include "tests/kernels/cuda/quantize_harness.h"
#include "tests/kernels/cuda/w4_reference.h"

namespace nibble::test {

using kernels::Fp8;
using kernels::Int8Range;
using kernels::cuda::QuantizeCode;
using kernels::cuda::QuantizeOp;

namespace {

namespace reference = kernels::reference;

// A row as the reference encodes it. Scales and sums are still without the
// factor of a norm.
struct Expected {
  std::vector<float> values;  // [k], what is encoded
  std::vector<float> sum;     // [k], of kAddNorm: x + residual, rounded
  float factor = 1;           // of a norm
  std::vector<uint8_t> codes;
  std::vector<float> scales;  // of the row, in the order of its columns
  int32_t zero = 0;
};

void MakeValues(const QuantizeCase& c, const QuantizeInputs& inputs,
                int64_t row, Expected& expected) {
  const std::span<const float> x(inputs.x.data() + row * c.k, c.k);
  expected.values.assign(x.begin(), x.end());
  if (c.op == QuantizeOp::kSiluMul) {
    std::vector<float> gate_up(x.begin(), x.end());
    const auto up = inputs.up.begin() + row * c.k;
    gate_up.insert(gate_up.end(), up, up + c.k);
    reference::SiluMulRow(gate_up.data(), c.k, expected.values.data());
  }
  if (c.op == QuantizeOp::kAddNorm) {
    for (int64_t i = 0; i < c.k; ++i) {
      expected.values[i] += inputs.residual[row * c.k + i];
    }
    const auto bytes = Encode(c.dtype, expected.values);
    for (int64_t i = 0; i < c.k; ++i) {
      expected.values[i] = static_cast<float>(
          Decode(c.dtype, bytes.data() + i * kernels::ElementBytes(c.dtype)));
    }
    expected.sum = expected.values;
  }
  if (c.IsNorm()) {
    const std::vector<float> normed = expected.values;
    expected.factor = reference::NormProducts(
        {.x = normed, .weight = inputs.weight.data(), .eps = inputs.eps},
        expected.values.data());
  }
}

void EncodeValues(const QuantizeCase& c, float given_scale,
                  Expected& expected) {
  const std::span<const float> values = expected.values;
  expected.codes.resize(c.k);
  uint8_t* codes = expected.codes.data();
  auto* integers = reinterpret_cast<int8_t*>(codes);
  switch (c.code) {
    case QuantizeCode::kInt8Token: {
      const auto result = reference::QuantizeInt8(values, c.range, integers);
      expected.scales = {result.scale};
      expected.zero = result.zero;
      break;
    }
    case QuantizeCode::kFp8Token:
      expected.scales = {reference::QuantizeFp8(values, c.fp8, codes)};
      break;
    case QuantizeCode::kFp8Tensor:
      reference::QuantizeFp8By(values, c.fp8, given_scale / expected.factor,
                               codes);
      break;
    case QuantizeCode::kFp8Block:
      for (int64_t begin = 0; begin < c.k; begin += kernels::kScaleBlock) {
        const int64_t count = std::min(kernels::kScaleBlock, c.k - begin);
        expected.scales.push_back(reference::QuantizeFp8(
            values.subspan(begin, count), c.fp8, codes + begin));
      }
      break;
    case QuantizeCode::kQ8:
      for (int64_t begin = 0; begin < c.k; begin += c.q8_group) {
        const int64_t count = std::min<int64_t>(c.q8_group, c.k - begin);
        std::vector<float> sums(DivideUp(count, kernels::kSumBlock));
        const float scale = reference::QuantizeQ8(
            values.subspan(begin, count), integers + begin, sums.data());
        for (const float sum : sums) {
          expected.scales.push_back(scale);
          expected.scales.push_back(sum);
        }
      }
      break;
  }
}

// Where a code stands among those of its format; of integers less `zero`.
int Place(const QuantizeCase& c, uint8_t code, int32_t zero) {
  if (!c.IsFp8()) return static_cast<int>(static_cast<int8_t>(code)) - zero;
  return code < 0x80 ? code : 0x80 - code;
}

// How much a scale may be off. FP32 sums of squares: chains of up to 64, then
// 10 levels; half of that in the root; three roundings. SiLU: 2^-16.
double ScaleTolerance(const QuantizeCase& c) {
  if (c.op == QuantizeOp::kSiluMul) return 0x1p-15;
  return c.IsNorm() ? (74.0 / 2 + 3) * 0x1p-24 : 0;
}

bool IsClose(float actual, float expected, double tolerance) {
  if (std::isnan(expected)) return std::isnan(actual);
  if (std::isinf(expected)) return actual == expected;
  const double off = std::fabs(static_cast<double>(actual) - expected);
  return off <= tolerance * std::fabs(expected);
}

// One row's judge. Owned by CheckQuantized.
class RowCheck final {
 public:
  RowCheck(const QuantizeCase& c, const QuantizeResult& result, int64_t row,
           const Expected& expected)
      : c_(c), result_(result), row_(row), expected_(expected) {}

  std::string Run() {
    const std::string wrong = Residual() + Scales() + Codes();
    return wrong.empty() ? "" : "row " + std::to_string(row_) + ":" + wrong;
  }

 private:
  std::string Residual() const {
    for (size_t i = 0; i < expected_.sum.size(); ++i) {
      const float got = result_.residual[row_ * c_.k + i];
      if (!IsClose(got, expected_.sum[i], 0)) {
        return Text("residual", i, got, expected_.sum[i]);
      }
    }
    return "";
  }

  std::string Scales() const {
    const double tolerance = ScaleTolerance(c_);
    for (size_t i = 0; i < expected_.scales.size(); ++i) {
      const bool sum = c_.code == QuantizeCode::kQ8 && i % 2 == 1;
      const float got =
          c_.code == QuantizeCode::kFp8Block
              ? result_.scales[i * c_.m + row_]
              : result_.scales[row_ * expected_.scales.size() + i];
      const float want = expected_.scales[i] * expected_.factor;
      // A sum of codes of which one in a hundred may be one off.
      const double slack = sum && c_.op == QuantizeOp::kSiluMul
                               ? 2 * std::fabs(expected_.scales[i - 1]) /
                                     std::max(std::fabs(want), 1e-30f)
                               : 0;
      if (!IsClose(got, want, tolerance + slack)) {
        return Text("scale", i, got, want);
      }
    }
    if (!result_.zeros.empty() &&
        std::abs(result_.zeros[row_] - expected_.zero) > (IsExact() ? 0 : 1)) {
      return Text("zero", 0, static_cast<float>(result_.zeros[row_]),
                  static_cast<float>(expected_.zero));
    }
    return "";
  }

  // Codes depend on nothing that is rounded in an order of its own.
  bool IsExact() const {
    return c_.op != QuantizeOp::kSiluMul &&
           !(c_.IsNorm() && c_.code == QuantizeCode::kFp8Tensor);
  }

  std::string Codes() const {
    const int32_t zero = result_.zeros.empty() ? 0 : result_.zeros[row_];
    int64_t off = 0;
    for (int64_t i = 0; i < c_.k; ++i) {
      const uint8_t got = result_.codes[row_ * c_.k + i];
      const uint8_t want = expected_.codes[i];
      const int steps =
          std::abs(Place(c_, got, zero) - Place(c_, want, expected_.zero));
      if (steps > (IsExact() ? 0 : 2) || (IsExact() && got != want)) {
        return Text("code", i, got, want);
      }
      off += steps;
    }
    // Values off by 2^-16 cross the middle of a step that rarely.
    if (off > 2 + c_.k / 100) {
      return Text("steps off", 0, static_cast<float>(off), 0);
    }
    return "";
  }

  static std::string Text(const char* what, size_t at, float got, float want) {
    std::ostringstream text;
    text.precision(9);
    text << " " << what << " [" << at << "] = " << got << ", expected " << want;
    return text.str();
  }

  const QuantizeCase& c_;
  const QuantizeResult& result_;
  int64_t row_;
  const Expected& expected_;
};

}  // namespace

std::string CheckQuantized(const QuantizeCase& c, const QuantizeInputs& inputs,
                           const QuantizeResult& result) {
  if (!result.problem.empty()) return result.problem;
  float greatest = 0;
  for (int64_t row = 0; row < c.m; ++row) {
    Expected expected;
    MakeValues(c, inputs, row, expected);
    EncodeValues(c, inputs.given_scale, expected);
    const std::string wrong = RowCheck(c, result, row, expected).Run();
    if (!wrong.empty()) return wrong;
    for (const float value : expected.values) {
      const float magnitude = std::fabs(value * expected.factor);
      // NaN is greatest, and stays.
      if (!std::isnan(greatest) && !(magnitude <= greatest)) {
        greatest = magnitude;
      }
    }
  }
  if (c.code == QuantizeCode::kFp8Tensor &&
      !IsClose(result.greatest, greatest, ScaleTolerance(c))) {
    return "greatest " + std::to_string(result.greatest) + ", expected " +
           std::to_string(greatest);
  }
  return "";
}

}  // namespace nibble::test
