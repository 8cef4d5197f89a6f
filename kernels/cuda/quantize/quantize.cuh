// The kernels of quantize.h. A CTA (or, of short rows, a warp) takes a row: all
// loads first, values in registers as FP32, one reduction, codes.
//
//   thread t of T      chunk t   T + t   2T + t  ...   (8 values each)
//
// The sum of squares of a norm and the extent of its products x * weight are
// reduced together, since the factor 1 / sqrt(mean + eps) is part of the scale
// and not of the codes.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/mma.cuh"
#include "kernels/cuda/quantize/encode.cuh"
#include "kernels/cuda/quantize/quantize_params.h"

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

__device__ __forceinline__ int ChunkAt(int i) {
  return i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
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

// Of all threads of the row, to all of them. Once in a kernel.
template <bool kSquares, bool kAbove, bool kBelow>
__device__ __forceinline__ RowStats ReduceRow(RowStats stats) {
  stats = ReduceWarp<kSquares, kAbove, kBelow>(stats);
  const int warps = static_cast<int>(blockDim.x) / 32;
  if (warps == 1) return stats;
  __shared__ RowStats parts[kMaxWarps];
  const int lane = threadIdx.x % 32;
  if (lane == 0) parts[threadIdx.x / 32] = stats;
  __syncthreads();
  stats = lane < warps ? parts[lane] : RowStats{};
  return ReduceWarp<kSquares, kAbove, kBelow>(stats);
}

// silu(gate) * up. Where e^-gate overflows the reciprocal is zero; what is
// flushed to zero is far below kLeastMax.
__device__ __forceinline__ float SiluMul(float gate, float up) {
  constexpr float kLog2E = 1.44269504f;
  float e, reciprocal;
  asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(e) : "f"(gate * -kLog2E));
  asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(reciprocal) : "f"(1.0f + e));
  return __fmul_rn(__fmul_rn(gate, reciprocal), up);
}

// The values to encode; adds the squares of what is normed to `squares`.
template <QuantizeOp O, typename T, int kChunks>
__device__ __forceinline__ void MakeValues(const QuantizeParams& p, int64_t row,
                                           float (&v)[kChunks][kChunk],
                                           float& squares) {
  constexpr int kBytes = kChunk * sizeof(T);
  constexpr bool kAdd = O == QuantizeOp::kAddNorm;
  constexpr bool kSilu = O == QuantizeOp::kSiluMul;
  const char* x = p.x + row * p.x_bytes;
  const char* up = kSilu ? p.up + row * p.x_bytes : nullptr;
  char* residual = kAdd ? p.residual + row * p.residual_bytes : nullptr;
  constexpr bool kStaged = IsStaged(O, sizeof(T), kChunks);
  // [row of the CTA][chunk][input][thread]: nobody else's, so without barriers.
  extern __shared__ uint4 staged[];
  uint4* mine = staged + threadIdx.y * kChunks * 2 * blockDim.x + threadIdx.x;
  RawChunk<T> first[kChunks], second[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int chunk = ChunkAt(i);
    const bool there = chunk < p.chunks;
    const char* from = x + int64_t{chunk} * kBytes;
    const char* other = (kAdd ? residual : up) + int64_t{chunk} * kBytes;
    if constexpr (kStaged) {
      if (there) {
        CopyAsync16(SharedAddress(mine + i * 2 * blockDim.x), from);
        CopyAsync16(SharedAddress(mine + (i * 2 + 1) * blockDim.x), other);
      }
    } else {
      first[i] = LoadChunk<T>(from, there);
      if constexpr (kAdd || kSilu) second[i] = LoadChunk<T>(other, there);
    }
  }
  if constexpr (kStaged) {
    CommitCopies();
    WaitCopies<0>();
  }
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int chunk = ChunkAt(i);
    const bool there = chunk < p.chunks;
    if constexpr (kStaged) {
      const uint4 zero = make_uint4(0, 0, 0, 0);
      first[i].v[0] = there ? mine[i * 2 * blockDim.x] : zero;
      second[i].v[0] = there ? mine[(i * 2 + 1) * blockDim.x] : zero;
    }
    Widen(first[i], v[i]);
    if constexpr (kAdd || kSilu) {
      float other[kChunk];
      Widen(second[i], other);
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        v[i][j] =
            kAdd ? __fadd_rn(other[j], v[i][j]) : SiluMul(v[i][j], other[j]);
      }
    }
    if constexpr (kAdd) {
      const RawChunk<T> sum = Narrow<T>(v[i]);
      if (there) StoreChunk(residual + int64_t{chunk} * kBytes, sum);
    }
    if constexpr (kAdd || O == QuantizeOp::kNorm) {
      const float* weight = p.weight + int64_t{chunk} * kChunk;
      const uint4 w[2] = {LoadGlobal16If(there, weight),
                          LoadGlobal16If(there, weight + 4)};
      const uint32_t bits[kChunk] = {w[0].x, w[0].y, w[0].z, w[0].w,
                                     w[1].x, w[1].y, w[1].z, w[1].w};
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        squares = fmaf(v[i][j], v[i][j], squares);
        v[i][j] = __fmul_rn(v[i][j], __uint_as_float(bits[j]));
      }
    }
  }
}

// 1 / sqrt(mean + eps), by which a norm's scales are multiplied.
template <QuantizeOp O>
__device__ __forceinline__ float NormFactor(const QuantizeParams& p,
                                            float squares) {
  if constexpr (O == QuantizeOp::kNorm || O == QuantizeOp::kAddNorm) {
    if (!IsFinite(squares)) return DeviceNan();
    return __frsqrt_rn(fmaf(squares, p.inverse_k, p.eps));
  } else {
    return 1.0f;
  }
}

__device__ __forceinline__ void StoreCodes(const QuantizeParams& p, int64_t row,
                                           int chunk, uint2 codes) {
  if (chunk >= p.code_chunks) return;
  if (chunk >= p.chunks) codes = make_uint2(0, 0);
  *reinterpret_cast<uint2*>(p.codes + row * p.code_bytes +
                            int64_t{chunk} * kChunk) = codes;
}

template <QuantizeOp O>
inline constexpr bool kIsNorm =
    O == QuantizeOp::kNorm || O == QuantizeOp::kAddNorm;

template <QuantizeOp O, int kChunks>
__device__ __forceinline__ void Int8Row(const QuantizeParams& p, int64_t row,
                                        const float (&v)[kChunks][kChunk],
                                        RowStats stats) {
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      stats.above = MaxNan(stats.above, v[i][j]);
      stats.below = MaxNan(stats.below, -v[i][j]);
    }
  }
  stats = ReduceRow<kIsNorm<O>, true, true>(stats);
  const float width = p.asymmetric ? __fadd_rn(stats.above, stats.below)
                                   : MaxNan(stats.above, stats.below);
  const bool finite = IsFinite(width);
  const float steps = p.asymmetric ? 254.0f : 127.0f;
  const float counted = fmaxf(width, kLeastMax);
  const float inverse = __fdiv_rn(steps, counted);
  int zero = 0;
  if (p.asymmetric && finite && width > 0) {
    zero = static_cast<int>(floorf(__fmul_rn(stats.below, inverse))) - 127;
  }
  if (threadIdx.x == 0) {
    const float factor = NormFactor<O>(p, stats.squares);
    p.scales[row] =
        finite ? __fmul_rn(__fdiv_rn(counted, steps), factor) : DeviceNan();
    if (p.asymmetric) p.zeros[row] = zero;
  }
  const float anchor = kRoundToInteger + static_cast<float>(zero);
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    StoreCodes(p, row, ChunkAt(i),
               EncodeInt8(v[i], inverse, anchor, finite ? ~0u : 0u));
  }
}

// The greatest magnitude of a chunk.
__device__ __forceinline__ float ChunkMax(const float (&v)[kChunk]) {
  float greatest = 0;
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    greatest = MaxNan(greatest, fabsf(v[j]));
  }
  return greatest;
}

// The width that counts; NaN where the group has no scale.
__device__ __forceinline__ float Counted(float greatest) {
  return IsFinite(greatest) ? fmaxf(greatest, kLeastMax) : DeviceNan();
}

template <QuantizeOp O, int kChunks>
__device__ __forceinline__ void Fp8Row(const QuantizeParams& p, int64_t row,
                                       const float (&v)[kChunks][kChunk],
                                       RowStats stats) {
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    stats.above = MaxNan(stats.above, ChunkMax(v[i]));
  }
  stats = ReduceRow<kIsNorm<O>, true, false>(stats);
  const float counted = Counted(stats.above);
  float inverse;
  if (p.given_scale) {
    const float factor = NormFactor<O>(p, stats.squares);
    inverse = IsFinite(stats.above)
                  ? __fmul_rn(factor, __fdiv_rn(1.0f, *p.scales))
                  : DeviceNan();
    if (threadIdx.x == 0 && p.greatest != nullptr) {
      atomicMax(reinterpret_cast<unsigned*>(p.greatest),
                __float_as_uint(MaxNan(0.0f, stats.above * factor)));
    }
  } else {
    inverse = __fdiv_rn(p.fp8_greatest, counted);
    if (threadIdx.x == 0) {
      p.scales[row] = __fmul_rn(__fdiv_rn(counted, p.fp8_greatest),
                                NormFactor<O>(p, stats.squares));
    }
  }
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    StoreCodes(p, row, ChunkAt(i), EncodeFp8(v[i], inverse, p.e5m2));
  }
}

// The greatest value of `lanes` lanes that stand together, a power of two.
__device__ __forceinline__ float MaxOfLanes(float value, int lanes) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    if (step >= lanes) break;
    value = MaxNan(value, __shfl_xor_sync(kAllLanes, value, step));
  }
  return value;
}

template <QuantizeOp O, int kChunks>
__device__ __forceinline__ void Fp8Blocks(const QuantizeParams& p, int64_t row,
                                          const float (&v)[kChunks][kChunk],
                                          RowStats stats) {
  constexpr int kLanes = kScaleBlock / kChunk;
  float counted[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    counted[i] = Counted(MaxOfLanes(ChunkMax(v[i]), kLanes));
    StoreCodes(p, row, ChunkAt(i),
               EncodeFp8(v[i], __fdiv_rn(p.fp8_greatest, counted[i]), p.e5m2));
  }
  if constexpr (kIsNorm<O>) stats = ReduceRow<true, false, false>(stats);
  const float factor = NormFactor<O>(p, stats.squares);
  if (threadIdx.x % kLanes != 0) return;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int chunk = ChunkAt(i);
    if (chunk < p.chunks) {
      p.scales[chunk / kLanes * p.scale_pitch + row] =
          __fmul_rn(__fdiv_rn(counted[i], p.fp8_greatest), factor);
    }
  }
}

template <QuantizeOp O, int kChunks>
__device__ __forceinline__ void Q8Groups(const QuantizeParams& p, int64_t row,
                                         const float (&v)[kChunks][kChunk],
                                         RowStats stats) {
  constexpr int kLanes = kSumBlock / kChunk;
  float counted[kChunks];
  int sums[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    float greatest = MaxOfLanes(ChunkMax(v[i]), kLanes);
    if (p.wide_groups) greatest = WarpMax(greatest);
    counted[i] = Counted(greatest);
    const uint2 codes =
        EncodeInt8(v[i], __fdiv_rn(127.0f, counted[i]), kRoundToInteger,
                   IsFinite(greatest) ? ~0u : 0u);
    StoreCodes(p, row, ChunkAt(i), codes);
    sums[i] = SumCodes(codes);
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) {
      sums[i] += __shfl_xor_sync(kAllLanes, sums[i], step);
    }
  }
  if constexpr (kIsNorm<O>) stats = ReduceRow<true, false, false>(stats);
  const float factor = NormFactor<O>(p, stats.squares);
  if (threadIdx.x % kLanes != 0) return;
  float2* pairs = reinterpret_cast<float2*>(p.scales) + row * p.scale_pitch;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int chunk = ChunkAt(i);
    if (chunk < p.chunks) {
      const float scale = __fmul_rn(__fdiv_rn(counted[i], 127.0f), factor);
      pairs[chunk / kLanes] =
          make_float2(scale, __fmul_rn(scale, static_cast<float>(sums[i])));
    }
  }
}

// How many CTAs of the most threads an SM must have room for, 0: no wish. One
// gives the compiler registers to issue a row's loads before the first value is
// used; SiLU-mul has stages for that, and better has two CTAs that take turns.
template <QuantizeOp O, int kChunks>
inline constexpr int kMinCtas =
    O == QuantizeOp::kSiluMul&& kChunks <= 4 ? 0 : 1;

template <QuantizeOp O, typename T, QuantizeCode C, int kChunks, int kThreads>
__global__ void __launch_bounds__(kThreads, kMinCtas<O, kChunks>)
    QuantizeRows(const __grid_constant__ QuantizeParams p) {
  LetDependentsStart();
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= p.m) return;  // whole warps, and no barrier ahead: rows of one
  WaitForDependency();
  float v[kChunks][kChunk];
  RowStats stats;
  MakeValues<O, T>(p, row, v, stats.squares);
  if constexpr (C == QuantizeCode::kInt8Token) Int8Row<O>(p, row, v, stats);
  if constexpr (C == QuantizeCode::kFp8Token) Fp8Row<O>(p, row, v, stats);
  if constexpr (C == QuantizeCode::kFp8Block) Fp8Blocks<O>(p, row, v, stats);
  if constexpr (C == QuantizeCode::kQ8) Q8Groups<O>(p, row, v, stats);
}

template <QuantizeOp O, typename T, int kShape>
const void* QuantizeKernelOf(QuantizeCode code) {
  constexpr RowShape kRow = kRowShapes[kShape];
  switch (code) {
    case QuantizeCode::kInt8Token:
      return reinterpret_cast<const void*>(
          &QuantizeRows<O, T, QuantizeCode::kInt8Token, kRow.chunks,
                        kRow.max_threads>);
    case QuantizeCode::kFp8Token:
    case QuantizeCode::kFp8Tensor:
      return reinterpret_cast<const void*>(
          &QuantizeRows<O, T, QuantizeCode::kFp8Token, kRow.chunks,
                        kRow.max_threads>);
    case QuantizeCode::kFp8Block:
      return reinterpret_cast<const void*>(
          &QuantizeRows<O, T, QuantizeCode::kFp8Block, kRow.chunks,
                        kRow.max_threads>);
    case QuantizeCode::kQ8:
      return reinterpret_cast<const void*>(
          &QuantizeRows<O, T, QuantizeCode::kQ8, kRow.chunks,
                        kRow.max_threads>);
  }
  return nullptr;
}

template <QuantizeOp O, typename T>
QuantizeKernels MakeQuantizeKernels() {
  QuantizeKernels kernels{};
  for (int i = 0; i < kNumCompiledCodes; ++i) {
    kernels.kernel[i][0] = QuantizeKernelOf<O, T, 0>(kCompiledCodes[i]);
    kernels.kernel[i][1] = QuantizeKernelOf<O, T, 1>(kCompiledCodes[i]);
    kernels.kernel[i][2] = QuantizeKernelOf<O, T, 2>(kCompiledCodes[i]);
  }
  static_assert(kNumRowShapes == 3, "one line a shape");
  return kernels;
}

}  // namespace nibble::kernels::cuda
