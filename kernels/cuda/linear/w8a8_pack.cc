#include "kernels/cuda/linear/w8a8_pack.h"

#include <cstring>
#include <numeric>

#include "base/check.h"

namespace nibble::kernels::cuda {

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
      packed.sums.push_back(std::accumulate(
          from.begin(), from.end(), int32_t{0}, [](int32_t sum, uint8_t code) {
            return sum + static_cast<int8_t>(code);
          }));
    }
  }
  return packed;
}

}  // namespace nibble::kernels::cuda
