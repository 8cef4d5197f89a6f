// 8-bit weights from the order of files to that of the W8A8 kernels, on the
// host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/linear/w8a8.h"

namespace nibble::kernels::cuda {

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
