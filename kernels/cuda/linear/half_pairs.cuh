// Two neighbours of a 16-bit type in a word.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace nibble::kernels::cuda {

// Pair: __nv_bfloat162 or __half2.
template <typename Pair>
__device__ __forceinline__ float2 UnpackPair(uint32_t bits) {
  if constexpr (std::is_same_v<Pair, __half2>) {
    return __half22float2(*reinterpret_cast<const __half2*>(&bits));
  } else {
    return make_float2(__uint_as_float(bits << 16),
                       __uint_as_float(bits & 0xFFFF0000u));
  }
}
template <typename Pair>
__device__ __forceinline__ uint32_t PackPair(float low, float high) {
  Pair pair;
  if constexpr (std::is_same_v<Pair, __half2>) {
    pair = __floats2half2_rn(low, high);
  } else {
    pair = __floats2bfloat162_rn(low, high);
  }
  return *reinterpret_cast<const uint32_t*>(&pair);
}

}  // namespace nibble::kernels::cuda
