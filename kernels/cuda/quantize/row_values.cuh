// A row of activations from memory to the values that are encoded: loads, by
// registers or by stages of shared memory, and what the operation makes of it.
//
//   thread t of T      chunk t   T + t   2T + t  ...   (8 values each)
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/mma.cuh"
#include "kernels/cuda/quantize/encode.cuh"
#include "kernels/cuda/quantize/quantize_params.h"

namespace nibble::kernels::cuda {

__device__ __forceinline__ int ChunkAt(int i) {
  return i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
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

}  // namespace nibble::kernels::cuda
