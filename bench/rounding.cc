#include "bench/rounding.h"

#include <algorithm>
#include <cmath>

#include "kernels/scaling.h"

namespace nibble::bench {

namespace reference = kernels::reference;
using kernels::Fp8;
using kernels::Int8Range;
using kernels::TensorScale;

float GreatestOf(std::span<const float> x) {
  float greatest = 0;
  for (const float value : x) greatest = std::max(greatest, std::fabs(value));
  return greatest;
}

ScaleOf CurrentScale(Fp8 format) {
  return [format](float greatest) {
    return TensorScale::Current(format).ScaleFor(greatest);
  };
}

Rounded RoundFp8(const Matrix& x, Fp8 format, Tile tile,
                 const ScaleOf& scale_of) {
  Rounded rounded{x, {}};
  for (int64_t row0 = 0; row0 < x.rows; row0 += tile.rows) {
    const int64_t row1 = std::min(row0 + tile.rows, x.rows);
    for (int64_t col = 0; col < x.cols; col += tile.cols) {
      const int64_t cols = std::min(tile.cols, x.cols - col);
      float greatest = 0;
      for (int64_t row = row0; row < row1; ++row) {
        greatest =
            std::max(greatest, GreatestOf(x.Row(row).subspan(col, cols)));
      }
      const float scale = scale_of(greatest);
      std::vector<uint8_t> codes(cols);
      for (int64_t row = row0; row < row1; ++row) {
        const auto values = x.Row(row).subspan(col, cols);
        reference::QuantizeFp8By(values, format, scale, codes.data());
        rounded.losses += reference::CountLosses(values, format, scale);
        for (int64_t i = 0; i < cols; ++i) {
          rounded.values.data[row * x.cols + col + i] =
              scale * reference::Fp8ToFloat(codes[i], format);
        }
      }
    }
  }
  return rounded;
}

Rounded RoundInt8(const Matrix& x, Int8Range range, int64_t group) {
  Rounded rounded{x, {}};
  rounded.losses.values = x.rows * x.cols;
  std::vector<int8_t> codes(group);
  for (int64_t row = 0; row < x.rows; ++row) {
    for (int64_t col = 0; col < x.cols; col += group) {
      const int64_t cols = std::min(group, x.cols - col);
      const auto values = x.Row(row).subspan(col, cols);
      const auto scale = reference::QuantizeInt8(values, range, codes.data());
      for (int64_t i = 0; i < cols; ++i) {
        const float value =
            scale.scale * static_cast<float>(codes[i] - scale.zero);
        rounded.values.data[row * x.cols + col + i] = value;
        if (value == 0 && values[i] != 0) ++rounded.losses.flushed;
      }
    }
  }
  return rounded;
}

}  // namespace nibble::bench
