// Greatest magnitudes and sums over the threads of a row, or of a few lanes.
#pragma once

#include <cstdint>

#include "kernels/cuda/quantize/encode.cuh"

namespace nibble::kernels::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kMaxWarps = 32;

__device__ __forceinline__ float DeviceNan() {
  return __uint_as_float(0x7fffffffu);
}
// Neither NaN nor infinity, of what is not negative.
__device__ __forceinline__ bool IsFinite(float magnitude) {
  return magnitude < __uint_as_float(0x7f800000u);
}

// What is reduced over a row. Magnitudes from zero, NaN if there was one.
struct RowStats {
  float squares = 0;
  float above = 0;
  float below = 0;
};

// Bits of numbers that are not negative are in the order of the numbers, NaN
// above all.
__device__ __forceinline__ float WarpMax(float value) {
  return __uint_as_float(__reduce_max_sync(kAllLanes, __float_as_uint(value)));
}
__device__ __forceinline__ float WarpSum(float value) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, lanes);
  }
  return value;
}

template <bool kSquares, bool kAbove, bool kBelow>
__device__ __forceinline__ RowStats ReduceWarp(RowStats stats) {
  if constexpr (kSquares) stats.squares = WarpSum(stats.squares);
  if constexpr (kAbove) stats.above = WarpMax(stats.above);
  if constexpr (kBelow) stats.below = WarpMax(stats.below);
  return stats;
}

// Of all threads of the row, to all of them. `turn` is another one, 0 or 1,
// from row to row: what one row left is read before the next row's barrier.
template <bool kSquares, bool kAbove, bool kBelow>
__device__ __forceinline__ RowStats ReduceRow(RowStats stats, int turn) {
  stats = ReduceWarp<kSquares, kAbove, kBelow>(stats);
  const int warps = static_cast<int>(blockDim.x) / 32;
  if (warps == 1) return stats;
  __shared__ RowStats parts[2][kMaxWarps];
  const int lane = threadIdx.x % 32;
  if (lane == 0) parts[turn][threadIdx.x / 32] = stats;
  __syncthreads();
  stats = lane < warps ? parts[turn][lane] : RowStats{};
  return ReduceWarp<kSquares, kAbove, kBelow>(stats);
}

// The greatest value of kLanes lanes that stand together, to all of them.
template <int kLanes>
__device__ __forceinline__ float MaxOfLanes(float value) {
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) {
    value = MaxNan(value, __shfl_xor_sync(kAllLanes, value, step));
  }
  return value;
}

// Divisions of groups of kLanes lanes, of which all lanes know the widths:
// chunk i is the business of lane i % kLanes of the group.
template <int kLanes, int kChunks>
struct GroupScales {
  static constexpr int kRounds = (kChunks + kLanes - 1) / kLanes;
  float counted[kRounds] = {};  // of the lane's own chunks

  __device__ explicit GroupScales(const float (&all)[kChunks]) {
    const int own = threadIdx.x % kLanes;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (i % kLanes == own) counted[i / kLanes] = all[i];
    }
  }

  // numerator / the width of each chunk, to all lanes of its group.
  __device__ void Inverses(float numerator, float (&inverses)[kChunks]) const {
    float own[kRounds];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) own[i] = __fdiv_rn(numerator, counted[i]);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      inverses[i] = __shfl_sync(kAllLanes, own[i / kLanes], i % kLanes, kLanes);
    }
  }
};

}  // namespace nibble::kernels::cuda
