// The 8-bit dot products on AVX2, FMA and F16C.
#include <cstring>

#include "kernels/cpu/dot.h"
#include "kernels/cpu/dot_table.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))

#include <immintrin.h>

#if !defined(__clang__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#else
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), \
                             apply_to = function)
#endif

namespace nibble::kernels::cpu {
namespace {

// vpmaddubsw adds two products of an unsigned and a signed byte into 16 bits,
// saturating. With |x| <= 127 two products of kBits-bit codes stay below
// 2 * 127 * (2^kBits - 1), so 8, 4 or 2 such sums (4, 5, 6 bits) fit 16 bits
// and vpmaddwd needs to widen them only then.
template <int kBits>
struct Dots {
  static constexpr int kSlabsIn16Bits = kBits == 4 ? 8 : kBits == 5 ? 4 : 2;
  static_assert(kSlabsIn16Bits * 2 * 127 * ((1 << kBits) - 1) <= 32767,
                "the 16-bit sums would saturate");

  void Clear() { sum16 = sum32 = _mm256_setzero_si256(); }
  template <int kSlab>
  void Add(__m256i codes, __m256i x) {
    sum16 = _mm256_add_epi16(sum16, _mm256_maddubs_epi16(codes, x));
    if constexpr ((kSlab + 1) % kSlabsIn16Bits == 0) {
      const __m256i ones = _mm256_set1_epi16(1);
      sum32 = _mm256_add_epi32(sum32, _mm256_madd_epi16(sum16, ones));
      sum16 = _mm256_setzero_si256();
    }
  }
  __m256i Sum() const { return sum32; }
  __m256i Centred(__m256i neg_sum8, int shift) const {
    return _mm256_add_epi32(sum32, _mm256_slli_epi32(neg_sum8, shift));
  }

  __m256i sum16;
  __m256i sum32;
};

// 8-bit codes would saturate at once. Centred they are bytes of -128 to 127:
// |w| times x with w's sign is at most 128 * 127, and two of those fit.
template <>
struct Dots<8> {
  void Clear() { sum32 = _mm256_setzero_si256(); }
  template <int kSlab>
  void Add(__m256i codes, __m256i x) {
    const __m256i w = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
    const __m256i products =
        _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    const __m256i ones = _mm256_set1_epi16(1);
    sum32 = _mm256_add_epi32(sum32, _mm256_madd_epi16(products, ones));
  }
  __m256i Centred(__m256i /*neg_sum8*/, int /*shift*/) const { return sum32; }

  __m256i sum32;
};

#include "kernels/cpu/dot256-inl.h"

}  // namespace

DotKernels Avx2DotKernels(QuantFormat format) {
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
DotKernels Avx2DotKernels(QuantFormat) { return {}; }
}  // namespace nibble::kernels::cpu

#endif
