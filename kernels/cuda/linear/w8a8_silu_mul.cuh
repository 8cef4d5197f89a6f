// The end of the W8A8 kernels of gate/up weights: silu(gate) * up, as numbers
// or as 8-bit codes of the next multiplication.
#pragma once

#include "kernels/activation_codes.h"
#include "kernels/cuda/linear/w8a8_store.cuh"
#include "kernels/cuda/quantize/encode.cuh"
#include "kernels/cuda/quantize/silu_mul.cuh"

namespace nibble::kernels::cuda {

// Eights of outputs of a thread in a unit.
inline constexpr int kSiluMulEights = kW8GateUpUnit / kW8RowGroup;

// 8 bytes to global memory, or nothing; a predicate instead of a branch.
__device__ __forceinline__ void StoreGlobal8If(bool there, void* p, uint2 v) {
  asm volatile(
      "{.reg .pred p;\n"
      "setp.ne.b32 p,%3,0;\n"
      "@p st.global.v2.b32 [%0],{%1,%2};}" ::"l"(p),
      "r"(v.x), "r"(v.y), "r"(static_cast<int>(there))
      : "memory");
}

// v * inverse. NaN where v is not finite: a conversion would hide an infinity.
__device__ __forceinline__ float ScaledOrNan(float v, float inverse) {
  return __fmaf_rn(v, 0.0f, __fmul_rn(v, inverse));
}

// The INT8 code of a scaled value, in [-127, 127]; 0 of NaN.
__device__ __forceinline__ uint32_t SaturatedInt8(float scaled) {
  int code;
  asm("cvt.rni.sat.s8.f32 %0,%1;" : "=r"(code) : "f"(MaxNan(scaled, -127.0f)));
  return static_cast<uint32_t>(code);
}

// Two E4M3 codes of two values, the first in the low byte.
__device__ __forceinline__ uint32_t E4m3Pair(float low, float high) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0,%1,%2;"
      : "=h"(pair)
      : "f"(high), "f"(low));
  return pair;
}

// Codes of v * inverse.
__device__ __forceinline__ uint2 EncodeEight(float inverse, bool int8,
                                             const float (&v)[8]) {
  uint32_t words[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float scaled[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      scaled[j] = ScaledOrNan(v[4 * i + j], inverse);
    }
    if (int8) {
      const uint32_t low = __byte_perm(SaturatedInt8(scaled[0]),
                                       SaturatedInt8(scaled[1]), 0x0040);
      const uint32_t high = __byte_perm(SaturatedInt8(scaled[2]),
                                        SaturatedInt8(scaled[3]), 0x0040);
      words[i] = __byte_perm(low, high, 0x5410);
    } else {
      words[i] = __byte_perm(E4m3Pair(scaled[0], scaled[1]),
                             E4m3Pair(scaled[2], scaled[3]), 0x5410);
    }
  }
  return make_uint2(words[0], words[1]);
}

// The greatest magnitude of a thread's outputs in a row.
__device__ __forceinline__ float GreatestOf(
    const float (&v)[kSiluMulEights][8]) {
  float greatest = 0;
#pragma unroll
  for (int eight = 0; eight < kSiluMulEights; ++eight) {
#pragma unroll
    for (int e = 0; e < 8; ++e) greatest = MaxNan(greatest, fabsf(v[eight][e]));
  }
  return greatest;
}

// The scale of a block of 128 outputs of a row, which a quad of lanes has.
// Stores it and returns what outputs are multiplied with.
__device__ __forceinline__ float ScaleBlock(const W8Params& p, int row,
                                            int block, float greatest) {
  greatest = MaxNan(greatest, __shfl_xor_sync(~0u, greatest, 1));
  greatest = MaxNan(greatest, __shfl_xor_sync(~0u, greatest, 2));
  constexpr float kTop = Greatest(Fp8::kE4m3);
  constexpr unsigned kInfinity = 0x7f800000, kNan = 0x7fffffff;
  const float counted = greatest < __uint_as_float(kInfinity)
                            ? fmaxf(greatest, kLeastMax)
                            : __uint_as_float(kNan);
  if (threadIdx.x % 4 == 0 && row < p.m) {
    p.silu_mul.scales[block * p.silu_mul.scales_pitch + row] =
        __fdiv_rn(counted, kTop);
  }
  return __fdiv_rn(kTop, counted);
}

// Codes of a thread's outputs in a row, whose columns begin at `first`.
// `greatest` becomes the greatest output that has been there.
__device__ __forceinline__ void StoreSiluMulCodes(const W8Params& p, int row,
                                                  int first,
                                                  float (&v)[kSiluMulEights][8],
                                                  float& greatest) {
  const int f = static_cast<int>(p.silu_mul.f);
  const int end = (f + 15) / 16 * 16;  // of what is stored
  const int block = first / static_cast<int>(kScaleBlock);
  if ((block + 1) * static_cast<int>(kScaleBlock) > f) {
#pragma unroll
    for (int eight = 0; eight < kSiluMulEights; ++eight) {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if (first + eight * 32 + e >= f) v[eight][e] = 0;
      }
    }
  }
  const float of_row = GreatestOf(v);
  float inverse;
  if (p.silu_mul.result == W8Result::kE4m3Block) {
    inverse = ScaleBlock(p, row, block, of_row);
  } else {
    inverse = __fdiv_rn(1.0f, __ldcg(p.silu_mul.scales));
    if (row < p.m) greatest = MaxNan(greatest, of_row);
  }
  const bool int8 = p.silu_mul.result == W8Result::kInt8Tensor;
  char* const y = static_cast<char*>(p.y) + row * p.ldy + first;
#pragma unroll
  for (int eight = 0; eight < kSiluMulEights; ++eight) {
    StoreGlobal8If(row < p.m && first + eight * 32 < end, y + eight * 32,
                   EncodeEight(inverse, int8, v[eight]));
  }
}

// Stores silu(gate) * up of a part of a tile: two units of packed rows of W,
// from `column0` on.
template <typename T>
__device__ __forceinline__ void StoreSiluMul(const W8Params& p,
                                             const W8Rows<T>& rows,
                                             const W8Vectors<T>& vectors,
                                             int column0,
                                             const typename T::Sums& sums) {
  static_assert(T::kTile.PartColumns() == 2 * kW8GateUpUnit,
                "a thread has gate and up of its outputs");
  static_assert(kW8GateUpUnit == kScaleBlock);
  if (column0 >= p.n) return;
  const int f = static_cast<int>(p.silu_mul.f);
  const int first = column0 / 2 + static_cast<int>(threadIdx.x) % 4 * 8;
  float greatest = 0;
#pragma unroll
  for (int i = 0; i < T::kRowParts; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = rows.At(i, half);
      float v[kSiluMulEights][8];
#pragma unroll
      for (int eight = 0; eight < kSiluMulEights; ++eight) {
        float up[8];
        Finish<T, true>(W8Columns<T, true>(vectors, eight), eight,
                        rows.scales[i][half], half, sums[i], v[eight]);
        constexpr int kUp = kSiluMulEights;
        Finish<T, true>(W8Columns<T, true>(vectors, kUp + eight), kUp + eight,
                        rows.scales[i][half], half, sums[i], up);
#pragma unroll
        for (int e = 0; e < 8; ++e) v[eight][e] = SiluMul(v[eight][e], up[e]);
      }
      if (p.silu_mul.result != W8Result::kNumbers) {
        StoreSiluMulCodes(p, row, first, v, greatest);
        continue;
      }
      if (p.plain && column0 / 2 + static_cast<int>(kW8GateUpUnit) <= f) {
        auto* const y = static_cast<__nv_bfloat16*>(p.y) + row * p.ldy + first;
#pragma unroll
        for (int eight = 0; eight < kSiluMulEights; ++eight) {
          StoreGlobal16If(row < p.m, y + eight * 32,
                          PackEight<__nv_bfloat162>(v[eight]));
        }
        continue;
      }
#pragma unroll
      for (int eight = 0; eight < kSiluMulEights; ++eight) {
        const int column = first + eight * 32;
        if (row < p.m && column < f) StoreEight(p, row, column, f, v[eight]);
      }
    }
  }
  if (p.silu_mul.greatest != nullptr &&
      p.silu_mul.result != W8Result::kNumbers) {
    // Bits of magnitudes are in the order of magnitudes, NaN's the last.
    const unsigned bits =
        __reduce_max_sync(~0u, __float_as_uint(MaxNan(0.0f, greatest)));
    if (threadIdx.x % 32 == 0) {
      atomicMax(reinterpret_cast<unsigned*>(p.silu_mul.greatest), bits);
    }
  }
}

}  // namespace nibble::kernels::cuda
