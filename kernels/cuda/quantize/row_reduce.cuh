// Greatest magnitudes and sums: over the threads of a row, and over groups of
// lanes that stand together.
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

// A number of each warp of a row, four a load.
struct alignas(16) WarpParts {
  float part[kMaxWarps];
};
__device__ __forceinline__ WarpParts& SharedParts(int stat) {
  __shared__ WarpParts parts[3];
  return parts[stat];
}

__device__ __forceinline__ int RowWarps() {
  return static_cast<int>(blockDim.x) / 32;
}

// Leaves the warp's number, the last warp also zeros up to a multiple of four.
__device__ __forceinline__ void LeavePart(WarpParts& parts, float value) {
  const int warps = RowWarps();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int at = warp + static_cast<int>(threadIdx.x) % 32;
  if (at < (warp + 1 == warps ? (warps + 3) / 4 * 4 : warp + 1)) {
    parts.part[at] = at == warp ? value : 0.0f;
  }
}

template <bool kSum>
__device__ __forceinline__ float JoinParts(const WarpParts& parts) {
  const auto* quads = reinterpret_cast<const float4*>(parts.part);
  float value = 0;
#pragma unroll 1
  for (int i = 0; 4 * i < RowWarps(); ++i) {
    const float4 quad = quads[i];
    if constexpr (kSum) {
      value += (quad.x + quad.y) + (quad.z + quad.w);
    } else {
      value = MaxNan(value, MaxNan(MaxNan(quad.x, quad.y),  //
                                   MaxNan(quad.z, quad.w)));
    }
  }
  return value;
}

// What is reduced over a row. Magnitudes from zero, NaN if there was one.
struct RowStats {
  float squares = 0;
  float above = 0;
  float below = 0;
};

// A reduction over the threads of a row, all of which make it together, once in
// a kernel. Lives in registers and shared memory.
template <bool kSquares, bool kAbove, bool kBelow>
class RowReduction final {
 public:
  __device__ __forceinline__ explicit RowReduction(RowStats stats) {
    if constexpr (kSquares) stats_.squares = WarpSum(stats.squares);
    if constexpr (kAbove) stats_.above = WarpMax(stats.above);
    if constexpr (kBelow) stats_.below = WarpMax(stats.below);
    if (RowWarps() == 1) return;
    if constexpr (kSquares) LeavePart(SharedParts(0), stats_.squares);
    if constexpr (kAbove) LeavePart(SharedParts(1), stats_.above);
    if constexpr (kBelow) LeavePart(SharedParts(2), stats_.below);
    __syncthreads();
  }

  __device__ __forceinline__ float Squares() const {
    if constexpr (!kSquares) return 0;
    return RowWarps() == 1 ? stats_.squares : JoinParts<true>(SharedParts(0));
  }
  __device__ __forceinline__ float Above() const {
    return RowWarps() == 1 ? stats_.above : JoinParts<false>(SharedParts(1));
  }
  __device__ __forceinline__ float Below() const {
    return RowWarps() == 1 ? stats_.below : JoinParts<false>(SharedParts(2));
  }

 private:
  RowStats stats_;  // of the warp
};

// value[i] of the kLanes lanes of a group joined, for each i; the results are
// dealt out on the way: lane l of the group returns that of i = l % kCount.
// kCount - 1 exchanges and one for each doubling of lanes from kCount to
// kLanes, where joining each i by itself takes kCount * log2(kLanes).
template <int kLanes, int kCount, typename V, typename Join>
__device__ __forceinline__ V DealOut(V (&value)[kCount], Join join) {
  static_assert(kCount <= kLanes && (kCount & (kCount - 1)) == 0);
#pragma unroll
  for (int half = kCount / 2; half > 0; half /= 2) {
    const bool upper = (threadIdx.x & half) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const V keep = upper ? value[half + i] : value[i];
      const V give = upper ? value[i] : value[half + i];
      value[i] = join(keep, __shfl_xor_sync(kAllLanes, give, half));
    }
  }
  V joined = value[0];
#pragma unroll
  for (int step = kCount; step < kLanes; step *= 2) {
    joined = join(joined, __shfl_xor_sync(kAllLanes, joined, step));
  }
  return joined;
}

// What lane i of the caller's group of kLanes lanes has.
template <int kLanes>
__device__ __forceinline__ float FromLane(float value, int i) {
  return __shfl_sync(kAllLanes, value, i, kLanes);
}

}  // namespace nibble::kernels::cuda
