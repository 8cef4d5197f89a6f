// The 8-bit dot products on AVX2, FMA and F16C.
#include <cstring>
#include <type_traits>
#include <utility>

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

// Neighbours of 16 bits times ones, added up in 32 bits.
inline __m256i Widen(__m256i sum16) {
  return _mm256_madd_epi16(sum16, _mm256_set1_epi16(1));
}

template <int kBits>
struct Codes {
  Codes() = default;
  explicit Codes(__m256i codes) : bytes(codes) {}

  __m256i bytes;
};

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
  void Add(const Codes<kBits>& codes, __m256i x) {
    sum16 = _mm256_add_epi16(sum16, _mm256_maddubs_epi16(codes.bytes, x));
    if constexpr ((kSlab + 1) % kSlabsIn16Bits == 0) {
      sum32 = _mm256_add_epi32(sum32, Widen(sum16));
      sum16 = _mm256_setzero_si256();
    }
  }
  __m256i Result(__m256i sums, __m256i correction) const {
    return _mm256_add_epi32(sum32, _mm256_madd_epi16(sums, correction));
  }

  __m256i sum16;
  __m256i sum32;
};

constexpr bool kCentredBytes = true;

// 8-bit codes would saturate at once. Centred they are bytes of -128 to 127:
// |w| times x with w's sign is at most 128 * 127, and two of those fit.
template <>
struct Codes<8> {
  Codes() = default;
  explicit Codes(__m256i codes)
      : bytes(_mm256_xor_si256(codes, _mm256_set1_epi8(-128))),
        sizes(_mm256_abs_epi8(bytes)) {}

  __m256i bytes;
  __m256i sizes;
};
template <>
struct Dots<8> {
  void Clear() { sum32 = _mm256_setzero_si256(); }
  template <int kSlab>
  void Add(const Codes<8>& codes, __m256i x) {
    const __m256i products =
        _mm256_maddubs_epi16(codes.sizes, _mm256_sign_epi8(x, codes.bytes));
    sum32 = _mm256_add_epi32(sum32, Widen(products));
  }
  __m256i Result(__m256i sums, __m256i correction) const {
    return _mm256_add_epi32(sum32, _mm256_madd_epi16(sums, correction));
  }

  __m256i sum32;
};

// Eight codes of 5 bits (four of 6, as much as Q6_K adds) fit a byte.
template <int kBits>
struct CodeSums {
  void Clear() { bytes = _mm256_setzero_si256(); }
  void Add(const Codes<kBits>& codes) {
    bytes = _mm256_add_epi8(bytes, codes.bytes);
  }
  // Below 2^15.
  __m256i Sum() const {
    return Widen(_mm256_maddubs_epi16(bytes, _mm256_set1_epi8(1)));
  }

  __m256i bytes;
};

// Of centred codes, as Dots<8> takes them.
template <>
struct CodeSums<8> {
  void Clear() { sum16 = _mm256_setzero_si256(); }
  void Add(const Codes<8>& codes) {
    const __m256i pairs =
        _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes.bytes);
    sum16 = _mm256_add_epi16(sum16, pairs);
  }
  // Below 2^15 in size; the sign must not reach the upper 16 bits.
  __m256i Sum() const {
    return _mm256_and_si256(Widen(sum16), _mm256_set1_epi32(0xffff));
  }

  __m256i sum16;
};

// As many as are summed in 16 bits: four rows' sums of 16 and of 32 bits at
// once would not fit the registers. The others have one kind at a time.
template <int kBits>
constexpr int kSlabsAtOnce = kBits == 5   ? 4
                             : kBits == 6 ? 2
                                          : 1;

#include "kernels/cpu/dot256-inl.h"

}  // namespace

DotKernels Avx2DotKernels(const PackedFormat& format) {
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
DotKernels Avx2DotKernels(const PackedFormat&) { return {}; }
}  // namespace nibble::kernels::cpu

#endif
