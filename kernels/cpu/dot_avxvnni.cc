// The 8-bit dot products on AVX2 with AVX-VNNI: vpdpbusd in 256 bits.
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/cpu/dot.h"
#include "kernels/cpu/dot_table.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))

#include <immintrin.h>

#if !defined(__clang__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avxvnni")
#else
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avxvnni"))), \
                             apply_to = function)
#endif

namespace nibble::kernels::cpu {
namespace {

template <int kBits>
struct Codes {
  Codes() = default;
  explicit Codes(__m256i codes) : bytes(codes) {}

  __m256i bytes;
};

template <int kBits>
struct Dots {
  void Clear() { sum = _mm256_setzero_si256(); }
  template <int kSlab>
  void Add(const Codes<kBits>& codes, __m256i x) {
    sum = _mm256_dpbusd_avx_epi32(sum, codes.bytes, x);
  }
  __m256i Result(__m256i sums, __m256i correction) const {
    return _mm256_dpwssd_avx_epi32(sum, sums, correction);
  }

  __m256i sum;
};

template <int kBits>
struct CodeSums {
  void Clear() { sum = _mm256_setzero_si256(); }
  void Add(const Codes<kBits>& codes) {
    sum = _mm256_dpbusd_avx_epi32(sum, codes.bytes, _mm256_set1_epi8(1));
  }
  // Below 2^15.
  __m256i Sum() const { return sum; }

  __m256i sum;
};

constexpr bool kCentredBytes = false;
template <int kBits>
constexpr int kSlabsAtOnce = 1;

#include "kernels/cpu/dot256-inl.h"

}  // namespace

DotKernels AvxVnniDotKernels(const PackedFormat& format) {
  return MakeDotKernels<Maker>(format);
}

}  // namespace nibble::kernels::cpu

#if !defined(__clang__)
#pragma GCC pop_options
#else
#pragma clang attribute pop
#endif

#else

namespace nibble::kernels::cpu {
DotKernels AvxVnniDotKernels(const PackedFormat&) { return {}; }
}  // namespace nibble::kernels::cpu

#endif
