// The 8-bit dot products on AVX-512 with VNNI: vpdpbusd takes 16 x 4 unsigned
// codes and 4 signed activation codes, broadcast from memory.
#include <cstring>

#include "kernels/cpu/dot.h"
#include "kernels/cpu/dot_table.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))

#include <immintrin.h>

// GCC 12 takes the undefined operand inside its own intrinsics for a mistake.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target( \
    "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#else
#pragma clang attribute push(                                              \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512" \
                          "vl,avx512vnni"))),                              \
    apply_to = function)
#endif

namespace nibble::kernels::cpu {
namespace {

constexpr int kSlabs = 8;
constexpr int kSlabBytes = 64;

inline __m512i LoadBytes(const std::byte* from) {
  return _mm512_loadu_si512(from);
}

inline __m512 LoadHalves(const std::byte* from) {
  return _mm512_cvtph_ps(
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

template <DType kType>
inline __m512 LoadScales16(const std::byte* from) {
  if constexpr (kType == DType::kF16) return LoadHalves(from);
  const __m512i bits = _mm512_cvtepu16_epi32(
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

inline __m512 LoadUnsignedBytes(const std::byte* from) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}

inline __m512 LoadSignedBytes(const std::byte* from) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}

inline __m512i Broadcast32(const void* from) {
  int32_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return _mm512_set1_epi32(bits);
}

// (bits & mask) | low, in one instruction.
inline __m512i MergeBits(__m512i bits, __m512i mask, __m512i low) {
  return _mm512_ternarylogic_epi32(bits, mask, low, 0xEA);
}

// The upper bits of slab kSlab, at bits 4 and 5 of a byte (others are junk).
template <int kBits, int kSlab>
inline __m512i UpperBits(__m512i plane) {
  constexpr int kAt = kBits == 5 ? kSlab : kSlab % 4 * 2;
  if constexpr (kAt < 4) return _mm512_slli_epi16(plane, 4 - kAt);
  if constexpr (kAt > 4) return _mm512_srli_epi16(plane, kAt - 4);
  return plane;
}

// w[j] = the codes of slab j.
template <int kBits>
inline void LoadCodes(const std::byte* block, __m512i* w) {
  if constexpr (kBits == 8) {
#pragma GCC unroll 8
    for (int j = 0; j < kSlabs; ++j) w[j] = LoadBytes(block + j * kSlabBytes);
    return;
  }
  const __m512i nibble = _mm512_set1_epi8(0xf);
#pragma GCC unroll 4
  for (int p = 0; p < kSlabs / 2; ++p) {
    const __m512i pair = LoadBytes(block + p * kSlabBytes);
    w[2 * p] = _mm512_and_si512(pair, nibble);
    w[2 * p + 1] = _mm512_and_si512(_mm512_srli_epi16(pair, 4), nibble);
  }
  if constexpr (kBits > 4) {
    const std::byte* upper = block + kSlabs / 2 * kSlabBytes;
    const __m512i mask = _mm512_set1_epi8(kBits == 5 ? 0x10 : 0x30);
    const __m512i first = LoadBytes(upper);
    const __m512i second = kBits == 5 ? first : LoadBytes(upper + kSlabBytes);
    w[0] = MergeBits(UpperBits<kBits, 0>(first), mask, w[0]);
    w[1] = MergeBits(UpperBits<kBits, 1>(first), mask, w[1]);
    w[2] = MergeBits(UpperBits<kBits, 2>(first), mask, w[2]);
    w[3] = MergeBits(UpperBits<kBits, 3>(first), mask, w[3]);
    w[4] = MergeBits(UpperBits<kBits, 4>(second), mask, w[4]);
    w[5] = MergeBits(UpperBits<kBits, 5>(second), mask, w[5]);
    w[6] = MergeBits(UpperBits<kBits, 6>(second), mask, w[6]);
    w[7] = MergeBits(UpperBits<kBits, 7>(second), mask, w[7]);
  }
}

// 16-bit pairs for each row of the panel, as Correction wants them: the sum of
// the codes of slabs [kFirst, kLast), below 2^15, and the offset.
template <PackedFormat kFormat, int kFirst, int kLast>
inline __m512i SumCodes(const __m512i* w) {
  constexpr int kBits = kFormat.code_bits;
  const __m512i ones = _mm512_set1_epi8(1);
  __m512i sums = _mm512_set1_epi32(kFormat.Offset() << 16);
  if constexpr (kBits == 8) {
#pragma GCC unroll 8
    for (int j = kFirst; j < kLast; ++j) {
      sums = _mm512_dpbusd_epi32(sums, w[j], ones);
    }
    return sums;
  }
  static_assert(kBits == 8 || (kLast - kFirst) * ((1 << kBits) - 1) <= 255,
                "the sums of bytes would overflow");
  __m512i bytes = w[kFirst];
#pragma GCC unroll 8
  for (int j = kFirst + 1; j < kLast; ++j) {
    bytes = _mm512_add_epi8(bytes, w[j]);
  }
  return _mm512_dpbusd_epi32(sums, bytes, ones);
}

// Adds the dot products of codes with the four of x at `from`, which are
// broadcast within the instruction: GCC 12 makes two of it.
inline void AddDots(__m512i codes, const int8_t* from, __m512i* dots) {
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(*dots)
      : "v"(codes), "m"(*reinterpret_cast<const int8_t(*)[4]>(from)));
}

// dots[r] = sums over slabs [kFirst, kLast) of (code - offset) * (x - zero),
// for kGroup rows at once: their chains of dot products hide each other's
// latency. `sums` are SumCodes of the same slabs, `corrections` the rows'.
template <int kGroup, int kFirst, int kLast>
inline void DotSlabs(const __m512i* w, __m512i sums, const QuadBlock& x,
                     int lane, const __m512i* corrections, __m512i* dots) {
#pragma GCC unroll 4
  for (int r = 0; r < kGroup; ++r) dots[r] = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (int j = kFirst; j < kLast; ++j) {
#pragma GCC unroll 4
    for (int r = 0; r < kGroup; ++r) {
      AddDots(w[j], x.codes[lane + r] + 4 * j, &dots[r]);
    }
  }
  // Last, so that nobody waits for `sums`.
#pragma GCC unroll 4
  for (int r = 0; r < kGroup; ++r) {
    dots[r] = _mm512_dpwssd_epi32(dots[r], sums, corrections[r]);
  }
}

// The scales that blocks share, FP32 [16] each (packed_format.h). `min` is
// kSuper's -dmin or the minimum of a group, a zero point's too.
struct Header {
  __m512 scale;
  __m512 min;
};

template <PackedFormat kFormat>
inline Header LoadHeader(const std::byte* at) {
  constexpr DType kType = kFormat.scale_dtype;
  constexpr Scaling kScaling = kFormat.scaling;
  Header header{LoadScales16<kType>(at), _mm512_setzero_ps()};
  at += 2 * kPanelRows;
  if constexpr (kScaling == Scaling::kSuper || kScaling == Scaling::kGroupMin) {
    header.min = LoadScales16<kType>(at);
  } else if constexpr (kScaling == Scaling::kGroupZero) {
    header.min =
        _mm512_fnmadd_ps(header.scale, LoadUnsignedBytes(at), header.min);
  }
  return header;
}

// What a block's rows share: scales, FP32 [16] each, and sums of codes.
struct BlockScales {
  __m512 first;   // of the block, or of its first half (kSuper16)
  __m512 second;  // of its second half
  __m512 min;
  __m512i first_sum;  // as `first`
  __m512i second_sum;
};

template <PackedFormat kFormat>
inline BlockScales LoadScales(const std::byte* at, const Header& header,
                              const __m512i* w) {
  BlockScales s{};
  if constexpr (kFormat.scaling == Scaling::kSuper16) {
    s.first_sum = SumCodes<kFormat, 0, 4>(w);
    s.second_sum = SumCodes<kFormat, 4, 8>(w);
  } else {
    s.first_sum = SumCodes<kFormat, 0, kSlabs>(w);
  }
  if constexpr (kFormat.scaling == Scaling::kScale) {
    s.first = LoadHalves(at);
  } else if constexpr (kFormat.scaling == Scaling::kScaleMin) {
    s.first = LoadHalves(at);
    s.min = LoadHalves(at + 2 * kPanelRows);
  } else if constexpr (kFormat.scaling == Scaling::kSuper) {
    s.first = _mm512_mul_ps(header.scale, LoadUnsignedBytes(at));
    s.min = _mm512_mul_ps(header.min, LoadUnsignedBytes(at + kPanelRows));
  } else if constexpr (kFormat.scaling == Scaling::kSuper16) {
    s.first = _mm512_mul_ps(header.scale, LoadSignedBytes(at));
    s.second = _mm512_mul_ps(header.scale, LoadSignedBytes(at + kPanelRows));
  } else {
    s.first = header.scale;
    s.min = header.min;
  }
  return s;
}

inline __m512 AddScaled(__m512i dot, __m512 scale, float x_scale, __m512 acc) {
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot),
                         _mm512_mul_ps(scale, _mm512_set1_ps(x_scale)), acc);
}

// Adds one block to acc [kGroup], for rows lane.. of one quad.
template <PackedFormat kFormat, int kGroup>
inline void AddBlock(const __m512i* w, const BlockScales& scales,
                     const QuadBlock& x, int lane, __m512* acc) {
  __m512i dots[kGroup], corrections[kGroup];
  if constexpr (kFormat.scaling == Scaling::kSuper16) {
#pragma GCC unroll 4
    for (int r = 0; r < kGroup; ++r) {
      corrections[r] = Broadcast32(&x.low[lane + r]);
    }
    DotSlabs<kGroup, 0, 4>(w, scales.first_sum, x, lane, corrections, dots);
#pragma GCC unroll 4
    for (int r = 0; r < kGroup; ++r) {
      acc[r] = AddScaled(dots[r], scales.first, x.scale[lane + r], acc[r]);
      // The sum over all less that over the first half; neg_zero stays.
      const __m512i low_sum =
          _mm512_and_si512(corrections[r], _mm512_set1_epi32(~int32_t{0xffff}));
      corrections[r] = _mm512_sub_epi16(Broadcast32(&x.all[lane + r]), low_sum);
    }
    DotSlabs<kGroup, 4, 8>(w, scales.second_sum, x, lane, corrections, dots);
#pragma GCC unroll 4
    for (int r = 0; r < kGroup; ++r) {
      acc[r] = AddScaled(dots[r], scales.second, x.scale[lane + r], acc[r]);
    }
    return;
  }
#pragma GCC unroll 4
  for (int r = 0; r < kGroup; ++r) {
    corrections[r] = Broadcast32(&x.all[lane + r]);
  }
  DotSlabs<kGroup, 0, kSlabs>(w, scales.first_sum, x, lane, corrections, dots);
#pragma GCC unroll 4
  for (int r = 0; r < kGroup; ++r) {
    acc[r] = AddScaled(dots[r], scales.first, x.scale[lane + r], acc[r]);
    if constexpr (!kFormat.Centred()) {
      acc[r] =
          _mm512_fmadd_ps(scales.min, _mm512_set1_ps(x.sum[lane + r]), acc[r]);
    }
  }
}

// As kAheadBytes, but a block takes half the time here. One pass of a few rows
// is all that a panel's lines are for: they need not stay in any cache. More
// rows come back for them.
constexpr int kAheadBytes512 = 8192;
template <int kRows>
constexpr _mm_hint kAheadHint = kRows < kQuad ? _MM_HINT_NTA : _MM_HINT_T0;

template <PackedFormat kFormat, int kRows>
void PanelDot(const DotCall& call) {
  constexpr int kGroup = kRows < kQuad ? kRows : kQuad;
  __m512 acc[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) acc[r] = _mm512_setzero_ps();
  Header header{};
  int64_t header_blocks = 0;  // left of those that share it
  const std::byte* at = call.panel;
  const int lane = kRows < kQuad ? call.lane : 0;
  const int64_t stride = call.quad_stride;
  const QuadBlock* x = call.x;
  for (int64_t b = 0; b < call.blocks; ++b, ++x) {
    if (kFormat.HeaderBytes() != 0 && header_blocks-- == 0) {
      header = LoadHeader<kFormat>(at);
      at += kFormat.HeaderBytes();
      header_blocks = call.header_blocks - 1;
    }
    for (int i = 0; i < kFormat.BlockBytes(); i += kLineBytes) {
      _mm_prefetch(at + kAheadBytes512 + i, kAheadHint<kRows>);
    }
    __m512i w[kSlabs];
    LoadCodes<kFormat.code_bits>(at, w);
    const BlockScales scales =
        LoadScales<kFormat>(at + kFormat.CodeBytes(), header, w);
    at += kFormat.BlockBytes();
#pragma GCC unroll 4
    for (int q = 0; q * kGroup < kRows; ++q) {
      AddBlock<kFormat, kGroup>(w, scales, x[q * stride], lane,
                                acc + q * kGroup);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    _mm512_storeu_ps(call.out + r * kPanelRows, acc[r]);
  }
}

struct Maker {
  template <PackedFormat kFormat>
  static DotKernels For() {
    return {{PanelDot<kFormat, 1>, PanelDot<kFormat, 2>, PanelDot<kFormat, 4>,
             PanelDot<kFormat, 8>, PanelDot<kFormat, 12>,
             PanelDot<kFormat, 16>}};
  }
};

}  // namespace

DotKernels Avx512VnniDotKernels(const PackedFormat& format) {
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
DotKernels Avx512VnniDotKernels(const PackedFormat&) { return {}; }
}  // namespace nibble::kernels::cpu

#endif
