// The kernels of quantize.h: a row's values in registers as FP32, one
// reduction, codes.
//
// The sum of squares of a norm and the extent of its products x * weight are
// reduced together, since the factor 1 / sqrt(mean + eps) is part of the scale
// and not of the codes.
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/cuda/linear/mma.cuh"
#include "kernels/cuda/quantize/encode.cuh"
#include "kernels/cuda/quantize/quantize_params.h"
#include "kernels/cuda/quantize/row_reduce.cuh"
#include "kernels/cuda/quantize/row_values.cuh"

namespace nibble::kernels::cuda {

// 1 / sqrt(mean + eps), by which a norm's scales are multiplied.
template <QuantizeOp O>
__device__ __forceinline__ float NormFactor(const QuantizeParams& p,
                                            float squares) {
  if constexpr (kIsNorm<O>) {
    if (!IsFinite(squares)) return DeviceNan();
    return __frsqrt_rn(fmaf(squares, p.inverse_k, p.eps));
  } else {
    return 1.0f;
  }
}

// Stores the codes `encode(i)` of the thread's chunks, and zeros behind the
// last chunk of the row.
template <int kChunks, typename Encode>
__device__ __forceinline__ void StoreCodes(const QuantizeParams& p,
                                           uint32_t row, Encode encode) {
  const int first = ChunkAt<kChunks>(0);
  uint8_t* to = p.codes + uint64_t{row} * p.code_bytes + first * kChunk;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const uint2 codes = encode(i);
    if (first + 32 * i < p.chunks) {
      *reinterpret_cast<uint2*>(to + 32 * i * kChunk) = codes;
    }
  }
  if (p.chunks % 2 != 0 && threadIdx.x == 0) {
    *reinterpret_cast<uint2*>(p.codes + uint64_t{row} * p.code_bytes +
                              p.chunks * kChunk) = make_uint2(0, 0);
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

// All zeros where `inverse` is NaN.
template <int kChunks>
__device__ __forceinline__ void StoreInt8(const QuantizeParams& p, uint32_t row,
                                          const float (&v)[kChunks][kChunk],
                                          float inverse, float anchor) {
  if (isnan(inverse)) {
    StoreCodes<kChunks>(p, row, [](int) { return make_uint2(0, 0); });
  } else {
    StoreCodes<kChunks>(
        p, row, [&](int i) { return EncodeInt8(v[i], inverse, anchor); });
  }
}

// `inverse_of(i)` gives the factor of chunk i.
template <int kChunks, typename InverseOf>
__device__ __forceinline__ void StoreFp8(const QuantizeParams& p, uint32_t row,
                                         const float (&v)[kChunks][kChunk],
                                         InverseOf inverse_of) {
  if (p.e5m2) {
    StoreCodes<kChunks>(
        p, row, [&](int i) { return EncodeFp8<true>(v[i], inverse_of(i)); });
  } else {
    StoreCodes<kChunks>(
        p, row, [&](int i) { return EncodeFp8<false>(v[i], inverse_of(i)); });
  }
}

template <QuantizeOp O, int kChunks>
__device__ __forceinline__ void Int8Symmetric(const QuantizeParams& p,
                                              uint32_t row,
                                              const float (&v)[kChunks][kChunk],
                                              RowStats stats) {
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    stats.above = MaxNan(stats.above, ChunkMax(v[i]));
  }
  const RowReduction<kIsNorm<O>, true, false> reduced(stats);
  const float counted = Counted(reduced.Above());
  const float inverse = __fdiv_rn(127.0f, counted);
  StoreInt8(p, row, v, inverse, kRoundToInteger);
  if (threadIdx.x == 0) {
    p.scales[row] = __fmul_rn(__fdiv_rn(counted, 127.0f),
                              NormFactor<O>(p, reduced.Squares()));
  }
}

template <QuantizeOp O, int kChunks>
__device__ __forceinline__ void Int8Asymmetric(
    const QuantizeParams& p, uint32_t row, const float (&v)[kChunks][kChunk],
    RowStats stats) {
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      stats.above = MaxNan(stats.above, v[i][j]);
      stats.below = MaxNan(stats.below, -v[i][j]);
    }
  }
  const RowReduction<kIsNorm<O>, true, true> reduced(stats);
  const float below = reduced.Below();
  const float width = __fadd_rn(reduced.Above(), below);
  const float counted = Counted(width);
  const float inverse = __fdiv_rn(254.0f, counted);
  int zero = 0;
  if (IsFinite(width) && width > 0) {
    zero = static_cast<int>(floorf(__fmul_rn(below, inverse))) - 127;
  }
  const float anchor = kRoundToInteger + static_cast<float>(zero);
  StoreInt8(p, row, v, inverse, anchor);
  if (threadIdx.x == 0) {
    p.scales[row] = __fmul_rn(__fdiv_rn(counted, 254.0f),
                              NormFactor<O>(p, reduced.Squares()));
    p.zeros[row] = zero;
  }
}

template <QuantizeOp O, int kChunks>
__device__ __forceinline__ void Fp8Row(const QuantizeParams& p, uint32_t row,
                                       const float (&v)[kChunks][kChunk],
                                       RowStats stats) {
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    stats.above = MaxNan(stats.above, ChunkMax(v[i]));
  }
  const RowReduction<kIsNorm<O>, true, false> reduced(stats);
  const float greatest = reduced.Above();
  const float counted = Counted(greatest);
  float inverse;
  if (p.given_scale) {
    const float factor = NormFactor<O>(p, reduced.Squares());
    inverse = IsFinite(greatest) ? __fmul_rn(factor, __fdiv_rn(1.0f, *p.scales))
                                 : DeviceNan();
    if (threadIdx.x == 0 && p.greatest != nullptr) {
      atomicMax(reinterpret_cast<unsigned*>(p.greatest),
                __float_as_uint(MaxNan(0.0f, greatest * factor)));
    }
  } else {
    inverse = __fdiv_rn(p.fp8_greatest, counted);
  }
  StoreFp8(p, row, v, [inverse](int) { return inverse; });
  if (threadIdx.x == 0 && !p.given_scale) {
    p.scales[row] = __fmul_rn(__fdiv_rn(counted, p.fp8_greatest),
                              NormFactor<O>(p, reduced.Squares()));
  }
}

// A division for each lane instead of one for each chunk: what belongs to chunk
// i is known to the i-th of the lanes that share a scale.
template <QuantizeOp O, int kChunks>
__device__ __forceinline__ void Fp8Blocks(const QuantizeParams& p, uint32_t row,
                                          const float (&v)[kChunks][kChunk],
                                          RowStats stats) {
  constexpr int kLanes = kScaleBlock / kChunk;
  float greatest[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) greatest[i] = ChunkMax(v[i]);
  const float counted = Counted(DealOut<kLanes>(greatest, MaxNan));
  const float inverse = __fdiv_rn(p.fp8_greatest, counted);
  float inverses[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) inverses[i] = FromLane<kLanes>(inverse, i);
  StoreFp8(p, row, v, [&inverses](int i) { return inverses[i]; });
  float factor = 1;
  if constexpr (kIsNorm<O>) {
    const RowReduction<true, false, false> reduced(stats);
    factor = NormFactor<O>(p, reduced.Squares());
  }
  const int own = threadIdx.x % kLanes;
  const int block = ChunkAt<kChunks>(own) / kLanes;
  if (own < kChunks && block * kLanes < p.chunks) {
    p.scales[block * p.scale_pitch + row] =
        __fmul_rn(__fdiv_rn(counted, p.fp8_greatest), factor);
  }
}

template <QuantizeOp O, int kChunks>
__device__ __forceinline__ void Q8Groups(const QuantizeParams& p, uint32_t row,
                                         const float (&v)[kChunks][kChunk],
                                         RowStats stats) {
  constexpr int kLanes = kSumBlock / kChunk;  // and chunks that they deal out
  float counted[kChunks / kLanes], inverses[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; i += kLanes) {
    float greatest[kLanes];
#pragma unroll
    for (int j = 0; j < kLanes; ++j) greatest[j] = ChunkMax(v[i + j]);
    float own = DealOut<kLanes>(greatest, MaxNan);
    if (p.wide_groups) {
#pragma unroll
      for (int step = kLanes; step < 32; step *= 2) {
        own = MaxNan(own, __shfl_xor_sync(kAllLanes, own, step));
      }
    }
    own = Counted(own);
    const float inverse = __fdiv_rn(127.0f, own);
#pragma unroll
    for (int j = 0; j < kLanes; ++j) {
      inverses[i + j] = FromLane<kLanes>(inverse, j);
    }
    counted[i / kLanes] = own;
  }
  int sum[kChunks];
  StoreCodes<kChunks>(p, row, [&](int i) {
    uint2 codes = EncodeInt8(v[i], inverses[i], kRoundToInteger);
    if (isnan(inverses[i])) codes = make_uint2(0, 0);
    sum[i] = SumCodes(codes);
    return codes;
  });
  int sums[kChunks / kLanes];
#pragma unroll
  for (int i = 0; i < kChunks; i += kLanes) {
    int part[kLanes];
#pragma unroll
    for (int j = 0; j < kLanes; ++j) part[j] = sum[i + j];
    sums[i / kLanes] =
        DealOut<kLanes>(part, [](int a, int b) { return a + b; });
  }
  float factor = 1;
  if constexpr (kIsNorm<O>) {
    const RowReduction<true, false, false> reduced(stats);
    factor = NormFactor<O>(p, reduced.Squares());
  }
  float2* pairs = reinterpret_cast<float2*>(p.scales) + row * p.scale_pitch;
  const int own = threadIdx.x % kLanes;
#pragma unroll
  for (int i = 0; i < kChunks; i += kLanes) {
    const int group = ChunkAt<kChunks>(i + own) / kLanes;
    if (group * kLanes < p.chunks) {
      const float scale =
          __fmul_rn(__fdiv_rn(counted[i / kLanes], 127.0f), factor);
      pairs[group] = make_float2(
          scale, __fmul_rn(scale, static_cast<float>(sums[i / kLanes])));
    }
  }
}

template <QuantizeOp O, QuantizeCode C, int kChunks>
__device__ __forceinline__ void EncodeRow(const QuantizeParams& p, uint32_t row,
                                          const float (&v)[kChunks][kChunk],
                                          RowStats stats) {
  if constexpr (C == QuantizeCode::kInt8Token) {
    if (p.asymmetric) {
      Int8Asymmetric<O>(p, row, v, stats);
    } else {
      Int8Symmetric<O>(p, row, v, stats);
    }
  } else if constexpr (C == QuantizeCode::kFp8Token) {
    Fp8Row<O>(p, row, v, stats);
  } else if constexpr (C == QuantizeCode::kFp8Block) {
    Fp8Blocks<O>(p, row, v, stats);
  } else {
    Q8Groups<O>(p, row, v, stats);
  }
}

// A row for each CTA or, of short rows, each warp: all loads first.
template <QuantizeOp O, typename T, QuantizeCode C, int kShape>
__global__ void __launch_bounds__(kRowShapes[kShape].max_threads,
                                  MinCtas(O, C, sizeof(T), kShape))
    QuantizeRows(const __grid_constant__ QuantizeParams p) {
  constexpr int kChunks = kRowShapes[kShape].chunks;
  LetDependentsStart();
  const uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= p.m) return;  // whole warps, and no barrier ahead: rows of one
  WaitForDependency();
  RawRow<O, T, kChunks> raw;
  if constexpr (IsStaged(O, sizeof(T), kChunks)) {
    StageRow(p, row, raw);
  } else {
    LoadRow(p, row, raw);
  }
  float v[kChunks][kChunk];
  RowStats stats;
  MakeValues(p, row, raw, v, stats.squares);
  EncodeRow<O, C>(p, row, v, stats);
}

template <QuantizeOp O, typename T, QuantizeCode C, int... kShapes>
void SetQuantizeKernels(std::integer_sequence<int, kShapes...>,
                        const void* (&kernels)[kNumRowShapes]) {
  ((kernels[kShapes] = reinterpret_cast<const void*>(
        &QuantizeRows<O, T, C, KernelShape(kShapes)>)),
   ...);
}

template <QuantizeOp O, typename T>
QuantizeKernels MakeQuantizeKernels() {
  constexpr std::make_integer_sequence<int, kNumRowShapes> kShapes;
  QuantizeKernels kernels{};
  SetQuantizeKernels<O, T, kCompiledCodes[0]>(kShapes, kernels.kernel[0]);
  SetQuantizeKernels<O, T, kCompiledCodes[1]>(kShapes, kernels.kernel[1]);
  SetQuantizeKernels<O, T, kCompiledCodes[2]>(kShapes, kernels.kernel[2]);
  SetQuantizeKernels<O, T, kCompiledCodes[3]>(kShapes, kernels.kernel[3]);
  static_assert(kNumCompiledCodes == 4, "one line a code");
  return kernels;
}

}  // namespace nibble::kernels::cuda
