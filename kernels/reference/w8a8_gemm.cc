#include "kernels/reference/w8a8_gemm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "base/check.h"
#include "kernels/reference/minifloat.h"

namespace nibble::kernels::reference {
namespace {

const std::array<float, 256>& E4m3Table() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> numbers{};
    for (int code = 0; code < 256; ++code) {
      numbers[code] = E4m3ToFloat(static_cast<uint8_t>(code));
    }
    return numbers;
  }();
  return table;
}

// Elements from `k` on that share the scales of both.
int64_t RunLength(const CodedMatrix& x, const CodedMatrix& w, int64_t k) {
  return std::min(
      {x.k - k, x.grid.ks - k % x.grid.ks, w.grid.ks - k % w.grid.ks});
}

CodedDot Int8Run(std::span<const uint8_t> x, int32_t x_zero,
                 std::span<const uint8_t> w, int32_t w_zero) {
  int64_t sum = 0, magnitude = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const int64_t product = int64_t{static_cast<int8_t>(x[i]) - x_zero} *
                            (static_cast<int8_t>(w[i]) - w_zero);
    sum += product;
    magnitude += std::abs(product);
  }
  return {static_cast<double>(sum), static_cast<double>(magnitude)};
}

CodedDot E4m3Run(std::span<const uint8_t> x, std::span<const uint8_t> w) {
  const std::array<float, 256>& number = E4m3Table();
  CodedDot dot;
  for (size_t i = 0; i < x.size(); ++i) {
    const double product = double{number[x[i]]} * number[w[i]];
    dot.value += product;
    dot.magnitude += std::fabs(product);
  }
  return dot;
}

}  // namespace

CodedDot DotOfCodes(const CodedMatrix& x, int64_t row, const CodedMatrix& w,
                    int64_t column) {
  NIBBLE_CHECK(x.type == w.type);
  NIBBLE_CHECK_EQ(x.k, w.k);
  const std::span<const uint8_t> x_row = x.Row(row), w_row = w.Row(column);
  const int32_t x_zero = x.zeros.empty() ? 0 : x.zeros[row];
  const int32_t w_zero = w.zeros.empty() ? 0 : w.zeros[column];
  CodedDot dot;
  for (int64_t k = 0; k < x.k;) {
    const int64_t count = RunLength(x, w, k);
    const auto x_run = x_row.subspan(k, count), w_run = w_row.subspan(k, count);
    const CodedDot run = x.type == CodeType::kInt8
                             ? Int8Run(x_run, x_zero, w_run, w_zero)
                             : E4m3Run(x_run, w_run);
    const double scale = double{x.grid.At(row, k)} * w.grid.At(column, k);
    dot.value += run.value * scale;
    dot.magnitude += run.magnitude * std::fabs(scale);
    k += count;
  }
  return dot;
}

}  // namespace nibble::kernels::reference
