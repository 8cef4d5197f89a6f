// The kernels of quantize.h: the values of a row stay in registers as FP32
// numbers from the loads to the codes. The sum of squares of a norm and the
// extent of its products x * weight are reduced together, since the factor
// 1 / sqrt(mean + eps) is part of the scale and not of the codes.
#pragma once

#include <cstdint>

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

__device__ __forceinline__ void StoreCodes(const QuantizeParams& p, int64_t row,
                                           int chunk, uint2 codes) {
  if (chunk >= p.code_chunks) return;
  if (chunk >= p.chunks) codes = make_uint2(0, 0);
  *reinterpret_cast<uint2*>(p.codes + row * p.code_bytes +
                            int64_t{chunk} * kChunk) = codes;
}

template <QuantizeOp O, int kChunks>
__device__ __forceinline__ void Int8Row(const QuantizeParams& p, int64_t row,
                                        const float (&v)[kChunks][kChunk],
                                        RowStats stats, int turn) {
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      stats.above = MaxNan(stats.above, v[i][j]);
      stats.below = MaxNan(stats.below, -v[i][j]);
    }
  }
  stats = ReduceRow<kIsNorm<O>, true, true>(stats, turn);
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
                                       RowStats stats, int turn) {
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    stats.above = MaxNan(stats.above, ChunkMax(v[i]));
  }
  stats = ReduceRow<kIsNorm<O>, true, false>(stats, turn);
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

template <QuantizeOp O, int kChunks>
__device__ __forceinline__ void Fp8Blocks(const QuantizeParams& p, int64_t row,
                                          const float (&v)[kChunks][kChunk],
                                          RowStats stats, int turn) {
  constexpr int kLanes = kScaleBlock / kChunk;
  float all[kChunks], inverses[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    all[i] = Counted(MaxOfLanes<kLanes>(ChunkMax(v[i])));
  }
  const GroupScales<kLanes, kChunks> scales(all);
  scales.Inverses(p.fp8_greatest, inverses);
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    StoreCodes(p, row, ChunkAt(i), EncodeFp8(v[i], inverses[i], p.e5m2));
  }
  if constexpr (kIsNorm<O>) stats = ReduceRow<true, false, false>(stats, turn);
  // A chunk's lane has the first lane of the group in its name.
  const int own = threadIdx.x % kLanes;
  const int chunk =
      own * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x) - own;
  if (own < kChunks && chunk < p.chunks) {
    p.scales[chunk / kLanes * p.scale_pitch + row] =
        __fmul_rn(__fdiv_rn(scales.counted[0], p.fp8_greatest),
                  NormFactor<O>(p, stats.squares));
  }
}

template <QuantizeOp O, int kChunks>
__device__ __forceinline__ void Q8Groups(const QuantizeParams& p, int64_t row,
                                         const float (&v)[kChunks][kChunk],
                                         RowStats stats, int turn) {
  constexpr int kLanes = kSumBlock / kChunk;
  float all[kChunks], inverses[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    all[i] = MaxOfLanes<kLanes>(ChunkMax(v[i]));
    if (p.wide_groups) all[i] = WarpMax(all[i]);
    all[i] = Counted(all[i]);
  }
  const GroupScales<kLanes, kChunks> scales(all);
  scales.Inverses(127.0f, inverses);
  int sums[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const uint2 codes = EncodeInt8(v[i], inverses[i], kRoundToInteger,
                                   all[i] == all[i] ? ~0u : 0u);
    StoreCodes(p, row, ChunkAt(i), codes);
    sums[i] = SumCodes(codes);
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) {
      sums[i] += __shfl_xor_sync(kAllLanes, sums[i], step);
    }
  }
  if constexpr (kIsNorm<O>) stats = ReduceRow<true, false, false>(stats, turn);
  const float factor = NormFactor<O>(p, stats.squares);
  float2* pairs = reinterpret_cast<float2*>(p.scales) + row * p.scale_pitch;
  const int own = threadIdx.x % kLanes;
#pragma unroll
  for (int round = 0; round < scales.kRounds; ++round) {
    const int i = round * kLanes + own;
    int sum = 0;
#pragma unroll
    for (int j = 0; j < kChunks; ++j) {
      if (j == i) sum = sums[j];
    }
    const int chunk =
        i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x) - own;
    if (i < kChunks && chunk < p.chunks) {
      const float scale =
          __fmul_rn(__fdiv_rn(scales.counted[round], 127.0f), factor);
      pairs[chunk / kLanes] =
          make_float2(scale, __fmul_rn(scale, static_cast<float>(sum)));
    }
  }
}

template <QuantizeOp O, typename T, QuantizeCode C, int kChunks>
__device__ __forceinline__ void QuantizeRow(
    const QuantizeParams& p, int64_t row, const RawRow<O, T, kChunks>& raw,
    const NormWeights<O, kChunks>& weights, int turn) {
  float v[kChunks][kChunk];
  RowStats stats;
  MakeValues<O, T>(p, row, raw, weights, v, stats.squares);
  if constexpr (C == QuantizeCode::kInt8Token) {
    Int8Row<O>(p, row, v, stats, turn);
  } else if constexpr (C == QuantizeCode::kFp8Token) {
    Fp8Row<O>(p, row, v, stats, turn);
  } else if constexpr (C == QuantizeCode::kFp8Block) {
    Fp8Blocks<O>(p, row, v, stats, turn);
  } else {
    Q8Groups<O>(p, row, v, stats, turn);
  }
}

template <QuantizeOp O, typename T, QuantizeCode C, int kShape>
__global__ void __launch_bounds__(kRowShapes[kShape].max_threads)
    QuantizeRows(const __grid_constant__ QuantizeParams p) {
  constexpr int kChunks = kRowShapes[kShape].chunks;
  constexpr int kStages = kRowShapes[kShape].stages;
  LetDependentsStart();
  const int64_t step = int64_t{gridDim.x} * blockDim.y;
  int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= p.m) return;  // whole warps, and no barrier ahead: rows of one
  NormWeights<O, kChunks> weights;
  RawRow<O, T, kChunks> raw;
  WaitForDependency();
  if constexpr (kStages == 0) {
    LoadRow(p, row, raw);
    LoadWeights(p, weights);
    QuantizeRow<O, T, C>(p, row, raw, weights, 0);
  } else {
    static_assert(sizeof(T) == 2, "stages are of 16-bit inputs");
    extern __shared__ uint4 stages[];
    const int stage_places =
        static_cast<int>(blockDim.x * blockDim.y) * kChunks * kInputs<O>;
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      AskForRow<O, kChunks>(p, row + i * step, stages + i * stage_places);
    }
    LoadWeights(p, weights);
    int stage = 0;
    for (int turn = 0; row < p.m; row += step, turn ^= 1) {
      uint4* places = stages + stage * stage_places;
      WaitCopies<kStages - 1>();
      TakeRow(p, places, raw);
      if constexpr (kStages > 1) {
        AskForRow<O, kChunks>(p, row + kStages * step, places);
        stage = stage + 1 == kStages ? 0 : stage + 1;
      }
      QuantizeRow<O, T, C>(p, row, raw, weights, turn);
    }
  }
}

template <QuantizeOp O, typename T, QuantizeCode C, int kShape>
void AddQuantizeKernels(const void* (&kernels)[kNumRowShapes]) {
  if constexpr (kShape < kNumRowShapes) {
    if constexpr (sizeof(T) == 2 || kRowShapes[kShape].stages == 0) {
      kernels[kShape] =
          reinterpret_cast<const void*>(&QuantizeRows<O, T, C, kShape>);
    }
    AddQuantizeKernels<O, T, C, kShape + 1>(kernels);
  }
}

template <QuantizeOp O, typename T>
QuantizeKernels MakeQuantizeKernels() {
  QuantizeKernels kernels{};
  AddQuantizeKernels<O, T, kCompiledCodes[0], 0>(kernels.kernel[0]);
  AddQuantizeKernels<O, T, kCompiledCodes[1], 0>(kernels.kernel[1]);
  AddQuantizeKernels<O, T, kCompiledCodes[2], 0>(kernels.kernel[2]);
  AddQuantizeKernels<O, T, kCompiledCodes[3], 0>(kernels.kernel[3]);
  static_assert(kNumCompiledCodes == 4, "one line each");
  return kernels;
}

}  // namespace nibble::kernels::cuda
