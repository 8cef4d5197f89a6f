// The parameters of the kernel that prepares x (w4a16_prepare.cuh). No CUDA in
// here.
#pragma once

#include <cstdint>

namespace nibble::kernels::cuda {

// By value. What the first load wants comes first, as in SmallParams.
struct PrepareParams {
  const char* x;  // [m, k], 16-bit
  int64_t ldx_bytes;
  uint32_t* arrived;  // [counters], set to zero
  int counters;
  int m, k;
  int blocks_k;
  bool waits;    // for kernels ahead, which may not have ended
  char* scaled;  // [m, k], for BF16
  int64_t scaled_pitch_bytes;
  float* sums;  // [column tile][group][SumsPitch], where they are needed
  int columns;  // of a column tile
};

inline constexpr int kPrepareWarps = 4;
inline constexpr int kPrepareRows = 16;

}  // namespace nibble::kernels::cuda
