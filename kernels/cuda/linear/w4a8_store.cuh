// The end of the W4A8 kernel: from a warpgroup's sums, rows of W times rows of
// x, to y, which is the other way round.
#pragma once

#include "kernels/cuda/linear/half_pairs.cuh"
#include "kernels/cuda/linear/w4a8_walk.cuh"
#include "kernels/cuda/linear/w8a8_store.cuh"

namespace nibble::kernels::cuda {

// The transpose of an 8 x 8 matrix of 16-bit elements.
__device__ __forceinline__ uint32_t Transpose(uint32_t pair) {
  uint32_t r;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0,%1;" : "=r"(r) : "r"(pair));
  return r;
}

// 8 bytes to global memory, or nothing; a predicate instead of a branch.
__device__ __forceinline__ void StoreGlobal8If(bool there, void* p, uint32_t a,
                                               uint32_t b) {
  asm volatile(
      "{.reg .pred p;\n"
      "setp.ne.b32 p,%3,0;\n"
      "@p st.global.v2.b32 [%0],{%1,%2};}" ::"l"(p),
      "r"(a), "r"(b), "r"(static_cast<int>(there))
      : "memory");
}

// 8 bytes from global memory that may be y's, or zeros.
__device__ __forceinline__ uint2 LoadGlobal8If(bool there, const void* p) {
  uint2 v;
  asm volatile(
      "{.reg .pred p;\n"
      "setp.ne.b32 p,%3,0;\n"
      "mov.b32 %0,0;\n"
      "mov.b32 %1,0;\n"
      "@p ld.global.v2.b32 {%0,%1},[%2];}"
      : "=&r"(v.x), "=&r"(v.y)
      : "l"(p), "r"(static_cast<int>(there))
      : "memory");
  return v;
}

// What a thread needs of the rows of W that it has sums of, g and g + 8 of its
// warp's 16. By value.
template <typename T>
struct W4a8Rows {
  int first;  // row of W, of the warp
  float scales[2], offsets[2], bias[2];

  __device__ __forceinline__ W4a8Rows(const W4a8Params& p, int block_row) {
    const int thread = threadIdx.x % kW8WarpgroupThreads;
    first = block_row + thread / 32 * 16;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = At(half);
      const bool there = row < p.n;
      scales[half] = 1;
      offsets[half] = 0;
      if constexpr (T::kChain) {
        scales[half] = there ? __ldg(p.row_scales + row) : 0;
      } else if constexpr (T::kFormat.HasOffsets()) {
        scales[half] = 1 / T::kFormat.SumUnit();
        offsets[half] = there ? __ldg(p.row_offsets + row) : 0;
      }
      bias[half] = there && p.bias != nullptr ? __ldg(p.bias + row) : 0;
    }
  }
  __device__ __forceinline__ int At(int half) const {
    return first + W4a8Row(static_cast<int>(threadIdx.x) % 32 / 4 + 8 * half);
  }
};

// Asks for the scales of a tile's rows of x; WaitCopies<0> and a barrier later
// they are there.
template <typename T>
__device__ __forceinline__ void FetchXScales(const W4a8Params& p, int column0,
                                             const float* to) {
#pragma unroll
  for (int c = 0; c < T::kColumns; c += kW8WarpgroupThreads) {
    const int at = c + threadIdx.x % kW8WarpgroupThreads;
    if (T::kColumns % kW8WarpgroupThreads != 0 && at >= T::kColumns) break;
    CopyAsync4If(column0 + at < p.m, SharedAddress(to + at),
                 p.x_scales + column0 + at);
  }
  CommitCopies();
}

// The four results of a thread in eight columns: rows g, g, g + 8, g + 8.
template <typename T, typename Number>
__device__ __forceinline__ void FinishFour(const W4a8Rows<T>& rows,
                                           const float* x_scales,
                                           const Number (&sums)[4],
                                           float (&v)[4]) {
  const float2 x = *reinterpret_cast<const float2*>(x_scales);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    float sum;
    if constexpr (T::kChain) {
      sum = __int2float_rn(static_cast<int>(sums[e]));
    } else {
      sum = sums[e];
    }
    const float scale = __fmul_rn(rows.scales[e / 2], e % 2 == 0 ? x.x : x.y);
    v[e] = __fmaf_rn(sum, scale, rows.bias[e / 2]);
  }
}

// A thread's four neighbours in a row of the residual, added to results where
// they are before they are transposed.
template <typename Pair>
__device__ __forceinline__ void AddFour(uint2 residual, float (&v)[4]) {
  const float2 low = UnpackPair<Pair>(Transpose(residual.x));
  const float2 high = UnpackPair<Pair>(Transpose(residual.y));
  v[0] = __fadd_rn(v[0], low.x);
  v[1] = __fadd_rn(v[1], low.y);
  v[2] = __fadd_rn(v[2], high.x);
  v[3] = __fadd_rn(v[3], high.y);
}

template <typename T, typename Pair, bool kAdd, typename Number>
__device__ __forceinline__ void StoreWide(const W4a8Params& p,
                                          const W4a8Rows<T>& rows,
                                          const float* x_scales, int column0,
                                          const Number (&sums)[T::kTiles][4]) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int64_t row = column0 + g;  // of y
  auto* y = static_cast<__nv_bfloat16*>(p.y) + row * p.ldy + rows.first + 4 * t;
  const auto* residual = static_cast<const __nv_bfloat16*>(p.residual) +
                         (row * p.ld_residual + rows.first + 4 * t);
#pragma unroll
  for (int i = 0; i < T::kTiles; ++i) {
    const bool there = row + 8 * i < p.m;
    float v[4];
    FinishFour(rows, x_scales + 8 * i + 2 * t, sums[i], v);
    if constexpr (kAdd) {
      AddFour<Pair>(LoadGlobal8If(there, residual), v);
      residual += 8 * p.ld_residual;
    }
    const uint32_t low = Transpose(PackPair<Pair>(v[0], v[1]));
    const uint32_t high = Transpose(PackPair<Pair>(v[2], v[3]));
    StoreGlobal8If(there, y, low, high);
    y += 8 * p.ldy;
  }
}
template <typename T, typename Pair, typename Number>
__device__ __forceinline__ void StoreWide(const W4a8Params& p,
                                          const W4a8Rows<T>& rows,
                                          const float* x_scales, int column0,
                                          const Number (&sums)[T::kTiles][4]) {
  if (p.residual != nullptr) {
    StoreWide<T, Pair, true>(p, rows, x_scales, column0, sums);
  } else {
    StoreWide<T, Pair, false>(p, rows, x_scales, column0, sums);
  }
}

// Stores a warpgroup's 64 rows of W times the tile's rows of x, which begin at
// `column0`.
template <typename T, typename Number>
__device__ __forceinline__ void StoreBlock(const W4a8Params& p,
                                           const W4a8Rows<T>& rows,
                                           const float* x_scales, int column0,
                                           const Number (&sums)[T::kTiles][4]) {
  if (p.wide && rows.first + 16 <= p.n) {
    if (p.y_dtype == DType::kBF16) {
      StoreWide<T, __nv_bfloat162>(p, rows, x_scales, column0, sums);
    } else {
      StoreWide<T, __half2>(p, rows, x_scales, column0, sums);
    }
    return;
  }
  const int t = threadIdx.x % 4;
  const int size = p.y_dtype == DType::kF32 ? 4 : 2;
#pragma unroll
  for (int i = 0; i < T::kTiles; ++i) {
    float v[4];
    FinishFour(rows, x_scales + 8 * i + 2 * t, sums[i], v);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int64_t column = column0 + 8 * i + 2 * t + e % 2;
      const int row = rows.At(e / 2);
      if (column < p.m && row < p.n) {
        StoreOne(
            p.y_dtype, static_cast<char*>(p.y) + (column * p.ldy + row) * size,
            p.residual == nullptr ? nullptr
                                  : static_cast<const char*>(p.residual) +
                                        (column * p.ld_residual + row) * size,
            v[e]);
      }
    }
  }
}

}  // namespace nibble::kernels::cuda
