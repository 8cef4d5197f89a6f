#include "kernels/cuda/linear/w8a8_pack.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "base/checked_math.h"

namespace nibble::kernels::cuda {
namespace {

int32_t SumOfInt8(std::span<const uint8_t> codes) {
  return std::accumulate(codes.begin(), codes.end(), int32_t{0},
                         [](int32_t sum, uint8_t code) {
                           return sum + static_cast<int8_t>(code);
                         });
}

}  // namespace

PackedW8 PackW8(W8Kind kind, std::span<const uint8_t> codes, int64_t n,
                int64_t k) {
  NIBBLE_CHECK(n >= 1 && k >= 1);
  NIBBLE_CHECK_EQ(static_cast<int64_t>(codes.size()), n * k);
  PackedW8 packed;
  packed.pitch = W8Pitch(k);
  packed.codes.resize(static_cast<size_t>(W8PackedRows(n) * packed.pitch));
  const bool sums = kind == W8Kind::kInt8;
  if (sums) packed.sums.reserve(static_cast<size_t>(n));
  for (int64_t row = 0; row < n; ++row) {
    const std::span<const uint8_t> from =
        codes.subspan(static_cast<size_t>(row * k), static_cast<size_t>(k));
    std::memcpy(packed.codes.data() + W8PackedRow(row) * packed.pitch,
                from.data(), from.size());
    if (sums) {
      packed.sums.push_back(SumOfInt8(from));
    }
  }
  return packed;
}

PackedW8Groups PackW8Groups(std::span<const uint8_t> codes,
                            std::span<const float> scales, int64_t n,
                            int64_t k) {
  NIBBLE_CHECK(n >= 1 && k >= 1);
  const int64_t groups = DivideUp(k, kW8BlockK);
  NIBBLE_CHECK_EQ(static_cast<int64_t>(codes.size()), n * k);
  NIBBLE_CHECK_EQ(static_cast<int64_t>(scales.size()), n * groups);
  PackedW8Groups packed;
  packed.pitch = W8PackedRows(n);
  packed.scales.resize(static_cast<size_t>(groups * packed.pitch));
  packed.scaled_sums.reserve(static_cast<size_t>(n));
  for (int64_t row = 0; row < n; ++row) {
    double scaled_sum = 0;
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t begin = group * kW8BlockK;
      const int64_t count = std::min(kW8BlockK, k - begin);
      const float scale = scales[row * groups + group];
      packed.scales[group * packed.pitch + row] = scale;
      scaled_sum +=
          double{scale} * SumOfInt8(codes.subspan(row * k + begin, count));
    }
    packed.scaled_sums.push_back(static_cast<float>(scaled_sum));
  }
  return packed;
}

}  // namespace nibble::kernels::cuda
