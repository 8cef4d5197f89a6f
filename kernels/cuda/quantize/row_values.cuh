// A row of activations from memory to the values that are encoded: loads, by
// registers or through shared memory, and what the operation makes of them.
//
//   warp w, lane l, of C chunks a thread (8 values each):
//                      chunk 32 C w + l   32 (C w + 1) + l   32 (C w + 2) + l
//                      ...
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/mma.cuh"
#include "kernels/cuda/quantize/encode.cuh"
#include "kernels/cuda/quantize/quantize_params.h"
#include "kernels/cuda/quantize/silu_mul.cuh"

namespace nibble::kernels::cuda {

// The chunks of a thread stand 32 apart, so that they differ by constants.
template <int kChunks>
__device__ __forceinline__ int ChunkAt(int i) {
  const int thread = static_cast<int>(threadIdx.x);
  return (thread / 32 * kChunks + i) * 32 + thread % 32;
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
                                                int input, uint32_t row) {
  if (input == 0) return p.x + uint64_t{row} * p.x_bytes;
  return O == QuantizeOp::kAddNorm
             ? p.residual + uint64_t{row} * p.residual_bytes
             : p.up + uint64_t{row} * p.x_bytes;
}

// A thread's part of a row as it stands in memory.
template <QuantizeOp O, typename T, int kChunks>
struct RawRow {
  RawChunk<T> chunk[kChunks][kInputs<O>];
};

template <QuantizeOp O, typename T, int kChunks>
__device__ __forceinline__ void LoadRow(const QuantizeParams& p, uint32_t row,
                                        RawRow<O, T, kChunks>& raw) {
  constexpr int kBytes = kChunk * sizeof(T);
  const int first = ChunkAt<kChunks>(0);
  const char* from[kInputs<O>];
#pragma unroll
  for (int input = 0; input < kInputs<O>; ++input) {
    from[input] = InputRow<O>(p, input, row) + first * kBytes;
  }
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
#pragma unroll
    for (int input = 0; input < kInputs<O>; ++input) {
      raw.chunk[i][input] = LoadChunk<T>(from[input] + 32 * i * kBytes,
                                         first + 32 * i < p.chunks);
    }
  }
}

__device__ __forceinline__ uint4 LoadStaged16(uint32_t shared) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3},[%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(shared)
               : "memory");
  return v;
}
__device__ __forceinline__ void StoreShared16(uint32_t shared, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0],{%1,%2,%3,%4};" ::"r"(shared), "r"(v.x),
               "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

// A thread's places in a stage of shared memory: [row of the CTA][warp][chunk]
// [input][lane], 16 bytes each. Nobody else touches them, so that they need no
// barrier.
template <QuantizeOp O, int kChunks>
__device__ __forceinline__ uint32_t StagePlaces() {
  extern __shared__ uint4 stages[];
  const unsigned warp = (threadIdx.y * blockDim.x + threadIdx.x) / 32;
  return SharedAddress(stages + warp * (kChunks * kInputs<O> * 32) +
                       threadIdx.x % 32);
}

// From one place of a thread to the next.
inline constexpr uint32_t kPlaceBytes = 32 * sizeof(uint4);

// LoadRow by way of shared memory, for 16-bit inputs.
template <QuantizeOp O, typename T, int kChunks>
__device__ __forceinline__ void StageRow(const QuantizeParams& p, uint32_t row,
                                         RawRow<O, T, kChunks>& raw) {
  const uint32_t places = StagePlaces<O, kChunks>();
  const int first = ChunkAt<kChunks>(0);
#pragma unroll
  for (int i = 0; i < kChunks * kInputs<O>; ++i) {
    if (first + i / kInputs<O> * 32 >= p.chunks) {
      StoreShared16(places + i * kPlaceBytes, make_uint4(0, 0, 0, 0));
    }
  }
#pragma unroll
  for (int input = 0; input < kInputs<O>; ++input) {
    const char* from = InputRow<O>(p, input, row) + first * 16;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (first + 32 * i < p.chunks) {
        CopyAsync16(places + (i * kInputs<O> + input) * kPlaceBytes,
                    from + 512 * i);
      }
    }
  }
  CommitCopies();
  WaitCopies<0>();
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
#pragma unroll
    for (int input = 0; input < kInputs<O>; ++input) {
      raw.chunk[i][input].v[0] =
          LoadStaged16(places + (i * kInputs<O> + input) * kPlaceBytes);
    }
  }
}

// The weights of a norm that go with chunk i.
template <int kChunks>
__device__ __forceinline__ void LoadWeights(const QuantizeParams& p, int i,
                                            float (&weights)[kChunk]) {
  const bool there = ChunkAt<kChunks>(i) < p.chunks;
  const float* from = p.weight + ChunkAt<kChunks>(i) * kChunk;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4 bits = LoadGlobal16If(there, from + 4 * half);
    weights[4 * half] = __uint_as_float(bits.x);
    weights[4 * half + 1] = __uint_as_float(bits.y);
    weights[4 * half + 2] = __uint_as_float(bits.z);
    weights[4 * half + 3] = __uint_as_float(bits.w);
  }
}

// The values to encode; adds the squares of what is normed to `squares`.
template <QuantizeOp O, typename T, int kChunks>
__device__ __forceinline__ void MakeValues(const QuantizeParams& p,
                                           uint32_t row,
                                           const RawRow<O, T, kChunks>& raw,
                                           float (&v)[kChunks][kChunk],
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
      const int chunk = ChunkAt<kChunks>(i);
      if (chunk < p.chunks) {
        StoreChunk(p.residual + uint64_t{row} * p.residual_bytes +
                       chunk * (kChunk * sizeof(T)),
                   sum);
      }
    }
    if constexpr (kIsNorm<O>) {
      float weights[kChunk];
      LoadWeights<kChunks>(p, i, weights);
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        sum = fmaf(v[i][j], v[i][j], sum);
        v[i][j] = __fmul_rn(v[i][j], weights[j]);
      }
      squares += sum;
    }
  }
}

}  // namespace nibble::kernels::cuda
