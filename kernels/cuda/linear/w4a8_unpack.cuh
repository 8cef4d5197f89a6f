// The W4A8 kernel: from packed codes to the A operand of wgmma.
#pragma once

#include "kernels/cuda/linear/w4a8_walk.cuh"

namespace nibble::kernels::cuda {

__device__ __forceinline__ uint2 LoadShared8At(uint32_t shared) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1},[%2];"
               : "=r"(v.x), "=r"(v.y)
               : "r"(shared)
               : "memory");
  return v;
}

// A thread's part of a block: its codes, and the scales of its rows g and g +
// 8. By value.
template <typename T>
struct W4a8Words {
  static constexpr int kRowWords = T::kFormat.RowBytes() / 4;
  uint32_t codes[8];
  uint32_t rows[2][kRowWords];

  __device__ __forceinline__ void LoadCodes(uint32_t block) {
    const int thread = threadIdx.x % kW8WarpgroupThreads;
    const uint32_t at = block + thread / 32 * 1024 + thread % 32 * 16;
    const uint4 low = LoadShared16At(at), high = LoadShared16At(at + 512);
    codes[0] = low.x, codes[1] = low.y, codes[2] = low.z, codes[3] = low.w;
    codes[4] = high.x, codes[5] = high.y, codes[6] = high.z, codes[7] = high.w;
  }
  __device__ __forceinline__ void LoadScales(uint32_t block) {
    const int pair = threadIdx.x % kW8WarpgroupThreads / 4;  // 8 warp + g
    const uint32_t at =
        block + kW4a8CodeBytes + pair * (2 * T::kFormat.RowBytes());
    if constexpr (kRowWords == 1) {
      const uint2 both = LoadShared8At(at);
      rows[0][0] = both.x, rows[1][0] = both.y;
    } else if constexpr (kRowWords == 2) {
      const uint4 both = LoadShared16At(at);
      rows[0][0] = both.x, rows[0][1] = both.y;
      rows[1][0] = both.z, rows[1][1] = both.w;
    } else {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const uint4 four = LoadShared16At(at + row * 16);
        rows[row][0] = four.x, rows[row][1] = four.y;
        rows[row][2] = four.z, rows[row][3] = four.w;
      }
    }
  }
};

// The 6-bit sub-scale of a row and step.
template <typename T>
__device__ __forceinline__ uint32_t SubScale(const W4a8Words<T>& words, int row,
                                             int step) {
  return words.rows[row][0] >> (8 * step) & 63;
}

// Two codes in the low halves of 16-bit lanes times m plus o, whose upper bytes
// are the results. m and o are even, so what the lower lane carries into the
// upper one, if anything, does not reach its upper byte.
__device__ __forceinline__ uint32_t Reround(uint32_t codes, uint32_t m,
                                            uint32_t both_o) {
  return (codes & 0x000F000Fu) * m + both_o;
}

// The operands of step `step` (k = 32 of the stage).
template <typename T>
__device__ __forceinline__ void Unpack(const W4a8Words<T>& words, int step,
                                       uint32_t (&a)[T::kParts][4]) {
  constexpr uint32_t kLow = 0x0F0F0F0Fu, kHigh = 0xF0F0F0F0u;
  if constexpr (T::kKind == W4a8Kind::kRerounded) {
    constexpr uint32_t kHighBytes = 0x7351;  // of two registers' 16-bit lanes
    constexpr uint32_t kHighHalf = 0x3232;
    constexpr int kSteps = T::kFormat.group / 32;  // that share a scale
    uint32_t m[2], o[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const uint32_t word = words.rows[row][step / kSteps];
      m[row] = word & 0xFFFF;
      o[row] = __byte_perm(word, 0, kHighHalf);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t word = words.codes[2 * step + half];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        a[0][2 * half + row] = __byte_perm(
            Reround(word >> (4 * row), m[row], o[row]),
            Reround(word >> (4 * row + 8), m[row], o[row]), kHighBytes);
      }
    }
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t word = words.codes[2 * step + half];
      uint32_t codes[2];
      if constexpr (T::kKind == W4a8Kind::kScale) {
        codes[0] = word << 4 & kHigh;
        codes[1] = word & kHigh;
      } else {
        codes[0] = word & kLow;
        codes[1] = word >> 4 & kLow;
      }
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        if constexpr (T::kKind == W4a8Kind::kSubScale) {
          // At most 15 * 7: bytes do not run over.
          const uint32_t sub = SubScale(words, row, step);
          a[0][2 * half + row] = codes[row] * (sub & 7);
          a[1][2 * half + row] = codes[row] * (sub >> 3);
        } else {
          a[0][2 * half + row] = codes[row];
        }
      }
    }
  }
}

}  // namespace nibble::kernels::cuda
