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

// silu(gate) * up. Where e^-gate overflows the reciprocal is zero; what is
// flushed to zero is far below kLeastMax.
__device__ __forceinline__ float SiluMul(float gate, float up) {
  constexpr float kLog2E = 1.44269504f;
  float e, reciprocal;
  asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(e) : "f"(gate * -kLog2E));
  asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(reciprocal) : "f"(1.0f + e));
  return __fmul_rn(__fmul_rn(gate, reciprocal), up);
}

template <QuantizeOp O>
inline constexpr bool kIsNorm =
    O == QuantizeOp::kNorm || O == QuantizeOp::kAddNorm;
template <QuantizeOp O>
inline constexpr int kInputs =
    O == QuantizeOp::kAddNorm || O == QuantizeOp::kSiluMul ? 2 : 1;

// Where input `input` of a row begins.
template <QuantizeOp O>
__device__ __forceinline__ const char* InputRow(const QuantizeParams& p,
                                                int input, int64_t row) {
  if (input == 0) return p.x + row * p.x_bytes;
  return O == QuantizeOp::kAddNorm ? p.residual + row * p.residual_bytes
                                   : p.up + row * p.x_bytes;
}

// A thread's part of a row as it stands in memory.
template <QuantizeOp O, typename T, int kChunks>
struct RawRow {
  RawChunk<T> chunk[kChunks][kInputs<O>];
};

template <QuantizeOp O, typename T, int kChunks>
__device__ __forceinline__ void LoadRow(const QuantizeParams& p, int64_t row,
                                        RawRow<O, T, kChunks>& raw) {
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int chunk = ChunkAt(i);
#pragma unroll
    for (int input = 0; input < kInputs<O>; ++input) {
      raw.chunk[i][input] = LoadChunk<T>(
          InputRow<O>(p, input, row) + int64_t{chunk} * (kChunk * sizeof(T)),
          chunk < p.chunks);
    }
  }
}

// A thread's places in shared memory: [chunk][input][thread], 16 bytes each.
// Nobody else touches them, so that they need no barrier.
template <QuantizeOp O, int kChunks>
__device__ __forceinline__ uint4* StagePlace(uint4* stage, int i, int input) {
  return stage +
         ((static_cast<int>(threadIdx.y) * kChunks + i) * kInputs<O> + input) *
             static_cast<int>(blockDim.x) +
         threadIdx.x;
}

// Asks for a row of 16-bit inputs, if there is one.
template <QuantizeOp O, int kChunks>
__device__ __forceinline__ void AskForRow(const QuantizeParams& p, int64_t row,
                                          uint4* stage) {
  if (row < p.m) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int chunk = ChunkAt(i);
      if (chunk >= p.chunks) break;
#pragma unroll
      for (int input = 0; input < kInputs<O>; ++input) {
        CopyAsync16(SharedAddress(StagePlace<O, kChunks>(stage, i, input)),
                    InputRow<O>(p, input, row) + int64_t{chunk} * 16);
      }
    }
  }
  CommitCopies();
}

template <QuantizeOp O, typename T, int kChunks>
__device__ __forceinline__ void TakeRow(const QuantizeParams& p, uint4* stage,
                                        RawRow<O, T, kChunks>& raw) {
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const bool there = ChunkAt(i) < p.chunks;
#pragma unroll
    for (int input = 0; input < kInputs<O>; ++input) {
      raw.chunk[i][input].v[0] = there
                                     ? *StagePlace<O, kChunks>(stage, i, input)
                                     : make_uint4(0, 0, 0, 0);
    }
  }
}

// A thread's part of the weights of a norm; of other operations nothing.
template <QuantizeOp O, int kChunks>
struct NormWeights {
  float w[kIsNorm<O> ? kChunks : 1][kChunk];
};

template <QuantizeOp O, int kChunks>
__device__ __forceinline__ void LoadWeights(const QuantizeParams& p,
                                            NormWeights<O, kChunks>& weights) {
  if constexpr (kIsNorm<O>) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const bool there = ChunkAt(i) < p.chunks;
      const float* from = p.weight + int64_t{ChunkAt(i)} * kChunk;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 bits = LoadGlobal16If(there, from + 4 * half);
        weights.w[i][4 * half] = __uint_as_float(bits.x);
        weights.w[i][4 * half + 1] = __uint_as_float(bits.y);
        weights.w[i][4 * half + 2] = __uint_as_float(bits.z);
        weights.w[i][4 * half + 3] = __uint_as_float(bits.w);
      }
    }
  }
}

// The values to encode; adds the squares of what is normed to `squares`.
template <QuantizeOp O, typename T, int kChunks>
__device__ __forceinline__ void MakeValues(
    const QuantizeParams& p, int64_t row, const RawRow<O, T, kChunks>& raw,
    const NormWeights<O, kChunks>& weights, float (&v)[kChunks][kChunk],
    float& squares) {
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    Widen(raw.chunk[i][0], v[i]);
    if constexpr (kInputs<O> == 2) {
      float other[kChunk];
      Widen(raw.chunk[i][1], other);
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        v[i][j] = O == QuantizeOp::kAddNorm ? __fadd_rn(other[j], v[i][j])
                                            : SiluMul(v[i][j], other[j]);
      }
    }
    if constexpr (O == QuantizeOp::kAddNorm) {
      const RawChunk<T> sum = Narrow<T>(v[i]);
      const int chunk = ChunkAt(i);
      if (chunk < p.chunks) {
        StoreChunk(p.residual + row * p.residual_bytes +
                       int64_t{chunk} * (kChunk * sizeof(T)),
                   sum);
      }
    }
    if constexpr (kIsNorm<O>) {
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        squares = fmaf(v[i][j], v[i][j], squares);
        v[i][j] = __fmul_rn(v[i][j], weights.w[i][j]);
      }
    }
  }
}

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
