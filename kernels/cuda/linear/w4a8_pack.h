// Packs 4-bit weights for the W4A8 kernels. Pure host code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/linear/pack.h"
#include "kernels/cuda/linear/w4a8_layout.h"

namespace nibble::kernels::cuda {

// A matrix of integer codes taken apart: weight (i, j) in group j / group is
// scale * code + minimum. Owned by whoever took it apart.
struct W4Numbers {
  int64_t n = 0;
  int64_t k = 0;
  int group = 0;                     // 32, 64 or 128
  bool symmetric = false;            // every minimum is -8 times the scale
  std::vector<uint8_t> codes = {};   // [n, k], 0 .. 15
  std::vector<float> scales = {};    // [n, Groups()]
  std::vector<float> minimums = {};  // [n, Groups()]
  // Of Q4_K, else empty: scale = super_scales * sub_scales.
  std::vector<float> super_scales = {};  // [n, ceil(k / 256)]
  std::vector<uint8_t> sub_scales = {};  // [n, Groups()], 0 .. 63

  int64_t Groups() const { return DivideUp(k, int64_t{group}); }
};

// INVALID_ARGUMENT for codes that are no integers (MXFP4, NVFP4).
absl::StatusOr<W4Numbers> TakeApart(const PackedW4& packed, int threads);

// A matrix packed for a format, in host memory. Owned by whoever packs it,
// until it is on the device.
struct PackedW4a8 {
  W4a8Format format{};
  int64_t n = 0;
  int64_t k = 0;
  std::vector<std::byte> blocks = {};   // W4a8PackedBytes(format, n, k)
  std::vector<float> row_scales = {};   // kRerounded: [n]; else empty
  std::vector<float> row_offsets = {};  // HasOffsets: [n]; else empty
};

// "" or why a format cannot hold these numbers.
std::string_view W4a8Refusal(const W4Numbers& numbers, W4a8Format format);

// INVALID_ARGUMENT, with W4a8Refusal, when the format cannot hold them.
absl::StatusOr<PackedW4a8> PackW4a8(const W4Numbers& numbers, W4a8Format format,
                                    int threads);

// What stands for weight (row, column) of a packed matrix: the code as the
// tensor cores see it, 8 bits where kRerounded, else 0 .. 15, or -8 .. 7 where
// kScale. For tests and benches.
int W4a8CodeAt(const PackedW4a8& packed, int64_t row, int64_t column);

}  // namespace nibble::kernels::cuda
