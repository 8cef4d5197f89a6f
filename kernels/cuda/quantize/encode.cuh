// Eight values of a row at a time: from memory to FP32, and to 8-bit codes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/activation_codes.h"
#include "kernels/reference/minifloat.h"

namespace nibble::kernels::cuda {

// Values of a row that a thread loads, encodes and stores together.
inline constexpr int kChunk = 8;

// A chunk as it stands in memory: one 16-byte load for each.
template <typename T>
struct RawChunk {
  static constexpr int kLoads = kChunk * sizeof(T) / 16;
  uint4 v[kLoads];
};

// 16 bytes, or zeros where they are not `there`. What one load does not use up
// of a line stays in L1 for the next.
template <bool kWholeLines>
__device__ __forceinline__ uint4 Load16If(bool there, const void* p) {
  uint4 v;
#define NIBBLE_LOAD_16_IF(kind)                                      \
  asm volatile(                                                      \
      "{.reg .pred p;\n"                                             \
      "setp.ne.b32 p,%5,0;\n"                                        \
      "mov.b32 %0,0;\nmov.b32 %1,0;\nmov.b32 %2,0;\nmov.b32 %3,0;\n" \
      "@p ld.global" kind ".v4.b32 {%0,%1,%2,%3},[%4];}"             \
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)                   \
      : "l"(p), "r"(static_cast<int>(there)))
  if constexpr (kWholeLines) {
    NIBBLE_LOAD_16_IF(".L1::no_allocate");
  } else {
    NIBBLE_LOAD_16_IF("");
  }
#undef NIBBLE_LOAD_16_IF
  return v;
}

template <typename T>
__device__ __forceinline__ RawChunk<T> LoadChunk(const void* p, bool there) {
  RawChunk<T> raw;
#pragma unroll
  for (int i = 0; i < RawChunk<T>::kLoads; ++i) {
    raw.v[i] = Load16If<RawChunk<T>::kLoads == 1>(
        there, static_cast<const uint4*>(p) + i);
  }
  return raw;
}

template <typename T>
__device__ __forceinline__ void StoreChunk(void* p, const RawChunk<T>& raw) {
#pragma unroll
  for (int i = 0; i < RawChunk<T>::kLoads; ++i) {
    static_cast<uint4*>(p)[i] = raw.v[i];
  }
}

template <typename T>
__device__ __forceinline__ void Widen(const RawChunk<T>& raw,
                                      float (&out)[kChunk]) {
#pragma unroll
  for (int i = 0; i < RawChunk<T>::kLoads; ++i) {
    const uint32_t words[4] = {raw.v[i].x, raw.v[i].y, raw.v[i].z, raw.v[i].w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (std::is_same_v<T, float>) {
        out[4 * i + j] = __uint_as_float(words[j]);
      } else if constexpr (std::is_same_v<T, __half>) {
        const float2 pair =
            __half22float2(*reinterpret_cast<const __half2*>(&words[j]));
        out[2 * j] = pair.x;
        out[2 * j + 1] = pair.y;
      } else {  // BF16: the upper half of an FP32 number
        out[2 * j] = __uint_as_float(words[j] << 16);
        out[2 * j + 1] = __uint_as_float(words[j] & 0xffff0000u);
      }
    }
  }
}

// Rounds to T, in place too.
template <typename T>
__device__ __forceinline__ RawChunk<T> Narrow(float (&values)[kChunk]) {
  RawChunk<T> raw;
  uint32_t words[4 * RawChunk<T>::kLoads];
#pragma unroll
  for (int j = 0; j < 4 * RawChunk<T>::kLoads; ++j) {
    if constexpr (std::is_same_v<T, float>) {
      words[j] = __float_as_uint(values[j]);
    } else if constexpr (std::is_same_v<T, __half>) {
      const __half2 pair = __floats2half2_rn(values[2 * j], values[2 * j + 1]);
      words[j] = *reinterpret_cast<const uint32_t*>(&pair);
    } else {
      const __nv_bfloat162 pair =
          __floats2bfloat162_rn(values[2 * j], values[2 * j + 1]);
      words[j] = *reinterpret_cast<const uint32_t*>(&pair);
    }
  }
#pragma unroll
  for (int i = 0; i < RawChunk<T>::kLoads; ++i) {
    raw.v[i] = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2],
                          words[4 * i + 3]);
  }
  Widen(raw, values);
  return raw;
}

// The greater one; NaN if either is.
__device__ __forceinline__ float MaxNan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0,%1,%2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

// Four FP8 codes, the first in the low byte.
template <bool kE5m2>
__device__ __forceinline__ uint32_t Fp8Quad(float a, float b, float c,
                                            float d) {
#if __CUDA_ARCH__ >= 890
  uint32_t quad;
  if constexpr (kE5m2) {
    asm("{.reg .b16 low,high;\n"
        "cvt.rn.satfinite.e5m2x2.f32 low,%2,%1;\n"
        "cvt.rn.satfinite.e5m2x2.f32 high,%4,%3;\n"
        "mov.b32 %0,{low,high};}"
        : "=r"(quad)
        : "f"(a), "f"(b), "f"(c), "f"(d));
  } else {
    asm("{.reg .b16 low,high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low,%2,%1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high,%4,%3;\n"
        "mov.b32 %0,{low,high};}"
        : "=r"(quad)
        : "f"(a), "f"(b), "f"(c), "f"(d));
  }
  return quad;
#else
  const auto code = [](float value) {
    return uint32_t{kE5m2 ? reference::FloatToE5m2(value)
                          : reference::FloatToE4m3(value)};
  };
  return code(a) | code(b) << 8 | code(c) << 16 | code(d) << 24;
#endif
}

// Codes of v * inverse.
template <bool kE5m2>
__device__ __forceinline__ uint2 EncodeFp8(const float (&v)[kChunk],
                                           float inverse) {
  uint32_t quads[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    quads[i] = Fp8Quad<kE5m2>(
        __fmul_rn(v[4 * i], inverse), __fmul_rn(v[4 * i + 1], inverse),
        __fmul_rn(v[4 * i + 2], inverse), __fmul_rn(v[4 * i + 3], inverse));
  }
  return make_uint2(quads[0], quads[1]);
}

// A float whose last bit is worth 1, so that an addition rounds to an integer,
// whose lowest byte is the lowest byte of the sum's bits.
inline constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2^23

// Codes of v * inverse + zero, a number; `anchor` is kRoundToInteger + zero.
__device__ __forceinline__ uint2 EncodeInt8(const float (&v)[kChunk],
                                            float inverse, float anchor) {
  uint32_t bits[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    bits[i] = __float_as_uint(__fmaf_rn(v[i], inverse, anchor));
  }
  uint32_t words[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t low = __byte_perm(bits[4 * i], bits[4 * i + 1], 0x0040);
    const uint32_t high = __byte_perm(bits[4 * i + 2], bits[4 * i + 3], 0x0040);
    words[i] = __byte_perm(low, high, 0x5410);
  }
  return make_uint2(words[0], words[1]);
}

// The sum of eight codes.
__device__ __forceinline__ int SumCodes(uint2 codes) {
  constexpr int kOnes = 0x01010101;
  return __dp4a(static_cast<int>(codes.x), kOnes,
                __dp4a(static_cast<int>(codes.y), kOnes, 0));
}

}  // namespace nibble::kernels::cuda
