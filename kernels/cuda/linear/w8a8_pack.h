// 8-bit weights from the order of files to that of the W8A8 kernels, on the
// host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/checked_math.h"
#include "kernels/cuda/linear/w8a8.h"

namespace nibble::kernels::cuda {

// The order of gate/up weights (kW8GateUpUnit): `rows` is gate [f, width] above
// up [f, width], the result [2 * (f rounded up to units), width]. With the
// default unit for rows of codes, scales of rows or groups and bias; with 1 for
// scales of blocks, f then counting rows of blocks.
template <typename T>
std::vector<T> InterleaveGateUp(std::span<const T> rows, int64_t f,
                                int64_t width, int64_t unit = kW8GateUpUnit) {
  NIBBLE_CHECK_EQ(static_cast<int64_t>(rows.size()), 2 * f * width);
  std::vector<T> interleaved(static_cast<size_t>(2 * RoundUp(f, unit) * width));
  for (int64_t row = 0; row < f; ++row) {
    const int64_t to = row / unit * 2 * unit + row % unit;
    for (const int64_t up : {0, 1}) {
      std::copy_n(rows.data() + (up * f + row) * width, width,
                  interleaved.data() + (to + up * unit) * width);
    }
  }
  return interleaved;
}

// W[n, k] as the kernels read it (W8Weights). Owned by whoever packed it.
struct PackedW8 {
  std::vector<std::byte> codes;  // [W8PackedRows(n), pitch], padding is zero
  int64_t pitch = 0;             // bytes
  std::vector<int32_t> sums;     // [n] of kInt8, else empty
};

// `codes`: [n, k] without gaps, INT8 or E4M3.
PackedW8 PackW8(W8Kind kind, std::span<const uint8_t> codes, int64_t n,
                int64_t k);

// The scales of groups as the kernels read them (W8Weights). Owned by whoever
// packed it.
struct PackedW8Groups {
  std::vector<float> scales;       // [ceil(k / 128), pitch], padding is zero
  int64_t pitch = 0;               // floats
  std::vector<float> scaled_sums;  // [n], rounded to FP32 once
};

// `codes`: [n, k] INT8, `scales`: [n, ceil(k / 128)], both without gaps.
PackedW8Groups PackW8Groups(std::span<const uint8_t> codes,
                            std::span<const float> scales, int64_t n,
                            int64_t k);

}  // namespace nibble::kernels::cuda
