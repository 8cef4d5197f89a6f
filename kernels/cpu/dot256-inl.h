// The 8-bit dot products in 256-bit registers: a panel's 16 rows are two
// halves of 8 lanes. Included once by each target's file, inside its unnamed
// namespace and under its target attributes, after <immintrin.h>. That file
// defines what its instructions make of a slab's codes:
//
//   template <int kBits> struct Dots {  // of one row, 8 lanes
//     void Clear();
//     template <int kSlab> void Add(__m256i codes, __m256i x);
//     __m256i Sum();  // of code * x over the slabs added
//     // Of (code - offset) * x, given neg_sum8 of those slabs' x and
//     // shift = log2(offset / 8).
//     __m256i Centred(__m256i neg_sum8, int shift);
//   };

constexpr int kSlabs = 8;
constexpr int kSlabBytes = 64;
constexpr int kHalfBytes = 32;
constexpr int kLanes = 8;

inline __m256i LoadBytes(const std::byte* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

inline __m256 LoadHalves(const std::byte* from) {
  return _mm256_cvtph_ps(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

inline __m256 LoadUnsignedBytes(const std::byte* from) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(
      _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}

inline __m256 LoadSignedBytes(const std::byte* from) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(
      _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}

inline __m256i Broadcast4(const int8_t* from) {
  int32_t four;
  std::memcpy(&four, from, sizeof(four));
  return _mm256_set1_epi32(four);
}

// The codes of slab kSlab for one half of the panel; `block` points at the
// half's bytes of slab 0.
template <int kBits, int kSlab>
inline __m256i LoadCodes(const std::byte* block) {
  if constexpr (kBits == 8) return LoadBytes(block + kSlab * kSlabBytes);
  __m256i codes = LoadBytes(block + kSlab / 2 * kSlabBytes);
  if constexpr (kSlab % 2 == 1) codes = _mm256_srli_epi16(codes, 4);
  codes = _mm256_and_si256(codes, _mm256_set1_epi8(0xf));
  if constexpr (kBits > 4) {
    constexpr int kPlane = kBits == 5 ? 0 : kSlab / 4;
    constexpr int kAt = kBits == 5 ? kSlab : kSlab % 4 * 2;
    __m256i upper = LoadBytes(block + (kSlabs / 2 + kPlane) * kSlabBytes);
    if constexpr (kAt < 4) upper = _mm256_slli_epi16(upper, 4 - kAt);
    if constexpr (kAt > 4) upper = _mm256_srli_epi16(upper, kAt - 4);
    const __m256i mask = _mm256_set1_epi8(kBits == 5 ? 0x10 : 0x30);
    codes = _mm256_or_si256(codes, _mm256_and_si256(upper, mask));
  }
  return codes;
}

template <int kBits, int kGroup, int kSlab>
inline void AddSlab(const std::byte* block, const QuadBlock& x, int lane,
                    Dots<kBits>* dots) {
  const __m256i codes = LoadCodes<kBits, kSlab>(block);
#pragma GCC unroll 4
  for (int r = 0; r < kGroup; ++r) {
    dots[r].template Add<kSlab>(codes,
                                Broadcast4(x.codes[lane + r] + 4 * kSlab));
  }
}

// dots[r] = the sums over slabs 0 to 3 (kSecond: 4 to 7) of code * x.
template <int kBits, int kGroup, bool kSecond>
inline void AddSlabs(const std::byte* block, const QuadBlock& x, int lane,
                     Dots<kBits>* dots) {
  constexpr int kFirst = kSecond ? 4 : 0;
  AddSlab<kBits, kGroup, kFirst>(block, x, lane, dots);
  AddSlab<kBits, kGroup, kFirst + 1>(block, x, lane, dots);
  AddSlab<kBits, kGroup, kFirst + 2>(block, x, lane, dots);
  AddSlab<kBits, kGroup, kFirst + 3>(block, x, lane, dots);
}

inline __m256 AddScaled(__m256i dot, __m256 scale, float x_scale, __m256 acc) {
  return _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot),
                         _mm256_mul_ps(scale, _mm256_set1_ps(x_scale)), acc);
}

// One of the two halves of a panel. `at` points at the block's codes of that
// half, `scales` at its scales (FP16 or bytes), `d`, `dmin` at the super's.
struct HalfPanel {
  const std::byte* codes;
  const std::byte* scales;
  __m256 d;
  __m256 dmin;
};

template <PackedFormat kFormat, int kGroup>
inline void AddHalvesOfBlock(const HalfPanel& half, const QuadBlock& x,
                             int lane, __m256* acc) {
  constexpr int kShift = kFormat.offset_shift - 3;
  const __m256 first = _mm256_mul_ps(half.d, LoadSignedBytes(half.scales));
  const __m256 second =
      _mm256_mul_ps(half.d, LoadSignedBytes(half.scales + kPanelRows));
  Dots<kFormat.code_bits> dots[kGroup];
#pragma GCC unroll 4
  for (int r = 0; r < kGroup; ++r) dots[r].Clear();
  AddSlabs<kFormat.code_bits, kGroup, false>(half.codes, x, lane, dots);
#pragma GCC unroll 4
  for (int r = 0; r < kGroup; ++r) {
    const int row = lane + r;
    acc[r] = AddScaled(
        dots[r].Centred(_mm256_set1_epi32(x.neg_sum8_low[row]), kShift), first,
        x.scale[row], acc[r]);
    dots[r].Clear();
  }
  AddSlabs<kFormat.code_bits, kGroup, true>(half.codes, x, lane, dots);
#pragma GCC unroll 4
  for (int r = 0; r < kGroup; ++r) {
    const int row = lane + r;
    const __m256i upper = _mm256_set1_epi32(x.neg_sum8[row]);
    const __m256i lower = _mm256_set1_epi32(x.neg_sum8_low[row]);
    acc[r] = AddScaled(dots[r].Centred(_mm256_sub_epi32(upper, lower), kShift),
                       second, x.scale[row], acc[r]);
  }
}

template <PackedFormat kFormat, int kGroup>
inline void AddBlock(const HalfPanel& half, const QuadBlock& x, int lane,
                     __m256* acc) {
  if constexpr (kFormat.scaling == Scaling::kSuper16) {
    AddHalvesOfBlock<kFormat, kGroup>(half, x, lane, acc);
    return;
  }
  __m256 scale, min = _mm256_setzero_ps();
  if constexpr (kFormat.scaling == Scaling::kSuper) {
    scale = _mm256_mul_ps(half.d, LoadUnsignedBytes(half.scales));
    min = _mm256_mul_ps(half.dmin, LoadUnsignedBytes(half.scales + kPanelRows));
  } else {
    scale = LoadHalves(half.scales);
    if constexpr (kFormat.scaling == Scaling::kScaleMin) {
      min = LoadHalves(half.scales + 2 * kPanelRows);
    }
  }
  Dots<kFormat.code_bits> dots[kGroup];
#pragma GCC unroll 4
  for (int r = 0; r < kGroup; ++r) dots[r].Clear();
  AddSlabs<kFormat.code_bits, kGroup, false>(half.codes, x, lane, dots);
  AddSlabs<kFormat.code_bits, kGroup, true>(half.codes, x, lane, dots);
#pragma GCC unroll 4
  for (int r = 0; r < kGroup; ++r) {
    const int row = lane + r;
    if constexpr (kFormat.scaling == Scaling::kScale) {
      const __m256i dot = dots[r].Centred(_mm256_set1_epi32(x.neg_sum8[row]),
                                          kFormat.offset_shift - 3);
      acc[r] = AddScaled(dot, scale, x.scale[row], acc[r]);
    } else {
      acc[r] = AddScaled(dots[r].Sum(), scale, x.scale[row], acc[r]);
      acc[r] = _mm256_fmadd_ps(min, _mm256_set1_ps(x.sum[row]), acc[r]);
    }
  }
}

// kGroup rows of one quad, kHalves halves of the panel from `first` on.
template <PackedFormat kFormat, int kGroup, int kHalves>
inline void HalvesDot(const DotCall& call, const QuadBlock* x, int lane,
                      int first, float* out) {
  constexpr bool kBytes = kFormat.SuperBytes() != 0;
  constexpr int kScaleHalf = kBytes ? kLanes : 2 * kLanes;  // bytes
  __m256 acc[kHalves][kGroup];
  HalfPanel half[kHalves] = {};
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h) {
#pragma GCC unroll 4
    for (int r = 0; r < kGroup; ++r) acc[h][r] = _mm256_setzero_ps();
  }
  const std::byte* at = call.panel;
  for (int64_t b = 0; b < call.blocks; ++b) {
    if (kBytes && b % kSuperBlocks == 0) {
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) {
        const std::byte* d = at + (first + h) * 2 * kLanes;
        half[h].d = LoadHalves(d);
        if constexpr (kFormat.scaling == Scaling::kSuper) {
          half[h].dmin = LoadHalves(d + 2 * kPanelRows);
        }
      }
      at += kFormat.SuperBytes();
    }
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) {
      half[h].codes = at + (first + h) * kHalfBytes;
      half[h].scales = at + kFormat.CodeBytes() + (first + h) * kScaleHalf;
      AddBlock<kFormat, kGroup>(half[h], x[b], lane, acc[h]);
    }
    at += kFormat.BlockBytes();
  }
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h) {
#pragma GCC unroll 4
    for (int r = 0; r < kGroup; ++r) {
      _mm256_storeu_ps(out + r * kPanelRows + (first + h) * kLanes, acc[h][r]);
    }
  }
}

// One or two rows stream the panel once. The 16 registers hold the sums of
// four rows for one half of it only, so a quad walks it twice, and larger
// variants quad after quad: it stays in the cache.
template <PackedFormat kFormat, int kRows>
void PanelDot(const DotCall& call) {
  if constexpr (kRows < kQuad) {
    HalvesDot<kFormat, kRows, 2>(call, call.x, call.lane, 0, call.out);
  } else {
    for (int q = 0; q < kRows / kQuad; ++q) {
      const QuadBlock* x = call.x + q * call.quad_stride;
      float* out = call.out + q * kQuad * kPanelRows;
      HalvesDot<kFormat, kQuad, 1>(call, x, 0, 0, out);
      HalvesDot<kFormat, kQuad, 1>(call, x, 0, 1, out);
    }
  }
}

struct Maker {
  template <QuantFormat kFormat>
  static DotKernels For() {
    constexpr PackedFormat kPacked = *PackedFormatOf(kFormat);
    return {{PanelDot<kPacked, 1>, PanelDot<kPacked, 2>, PanelDot<kPacked, 4>,
             PanelDot<kPacked, 8>, PanelDot<kPacked, 12>,
             PanelDot<kPacked, 16>}};
  }
};
