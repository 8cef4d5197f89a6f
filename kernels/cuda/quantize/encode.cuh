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

// Two FP8 codes of two values, the first in the low byte.
__device__ __forceinline__ uint32_t Fp8Pair(float low, float high, bool e5m2) {
#if __CUDA_ARCH__ >= 890
  uint16_t pair;
  if (e5m2) {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0,%1,%2;"
        : "=h"(pair)
        : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0,%1,%2;"
        : "=h"(pair)
        : "f"(high), "f"(low));
  }
  return pair;
#else
  return e5m2 ? reference::FloatToE5m2(low) |
                    uint32_t{reference::FloatToE5m2(high)} << 8
              : reference::FloatToE4m3(low) |
                    uint32_t{reference::FloatToE4m3(high)} << 8;
#endif
}

// Codes of v * inverse.
__device__ __forceinline__ uint2 EncodeFp8(const float (&v)[kChunk],
                                           float inverse, bool e5m2) {
  uint32_t pairs[kChunk / 2];
#pragma unroll
  for (int i = 0; i < kChunk / 2; ++i) {
    pairs[i] = Fp8Pair(__fmul_rn(v[2 * i], inverse),
                       __fmul_rn(v[2 * i + 1], inverse), e5m2);
  }
  return make_uint2(__byte_perm(pairs[0], pairs[1], 0x5410),
                    __byte_perm(pairs[2], pairs[3], 0x5410));
}

// A float whose last bit is worth 1, so that an addition rounds to an integer,
// whose lowest byte is the lowest byte of the sum's bits.
inline constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2^23

// Codes of v * inverse + zero; `anchor` is kRoundToInteger + zero. All zeros
// where `mask` is 0, else it is ~0.
__device__ __forceinline__ uint2 EncodeInt8(const float (&v)[kChunk],
                                            float inverse, float anchor,
                                            uint32_t mask) {
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
    words[i] = __byte_perm(low, high, 0x5410) & mask;
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
