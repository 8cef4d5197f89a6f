// The 8-bit dot products in 256-bit registers: a panel's 16 rows are two
// halves of 8 lanes. Included once by each target's file, inside its unnamed
// namespace and under its target attributes, after <immintrin.h>. That file
// defines what its instructions make of a slab's codes, 8 lanes each:
//
//   template <int kBits> struct Dots {  // of one row
//     void Clear();
//     template <int kSlab> void Add(__m256i codes, __m256i x);
//     // Of (code - offset) * (x - zero) over the slabs added, given the Sum of
//     // their codes, neg_zero in the lower 16 bits, neg_sum8 of their x and
//     // shift = log2(offset / 8); without an offset, neg_sum8 is 0.
//     __m256i Result(__m256i sums, __m256i neg_zero, __m256i neg_sum8,
//                    int shift);
//   };
//   template <int kBits> struct CodeSums {
//     void Clear();
//     template <int kSlab> void Add(__m256i codes);
//     __m256i Sum();  // of the codes, as Dots wants it
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

template <DType kType>
inline __m256 LoadScales16(const std::byte* from) {
  if constexpr (kType == DType::kF16) return LoadHalves(from);
  const __m256i bits = _mm256_cvtepu16_epi32(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}

inline __m256 LoadUnsignedBytes(const std::byte* from) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(
      _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}

inline __m256 LoadSignedBytes(const std::byte* from) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(
      _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}

inline __m256i Broadcast32(const void* from) {
  int32_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return _mm256_set1_epi32(bits);
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

// The sums of some slabs for kGroup rows.
template <int kBits, int kGroup>
struct BlockSums {
  Dots<kBits> dots[kGroup];
  CodeSums<kBits> codes;
};

template <int kBits, int kGroup>
inline void Clear(BlockSums<kBits, kGroup>& sums) {
  sums.codes.Clear();
#pragma GCC unroll 4
  for (int r = 0; r < kGroup; ++r) sums.dots[r].Clear();
}

template <int kBits, int kGroup, int kSlab>
inline void AddSlab(const std::byte* block, const QuadBlock& x, int lane,
                    BlockSums<kBits, kGroup>& sums) {
  const __m256i codes = LoadCodes<kBits, kSlab>(block);
  sums.codes.template Add<kSlab>(codes);
#pragma GCC unroll 4
  for (int r = 0; r < kGroup; ++r) {
    sums.dots[r].template Add<kSlab>(
        codes, Broadcast32(x.codes[lane + r] + 4 * kSlab));
  }
}

// Adds slabs 0 to 3 (kSecond: 4 to 7).
template <int kBits, int kGroup, bool kSecond>
inline void AddSlabs(const std::byte* block, const QuadBlock& x, int lane,
                     BlockSums<kBits, kGroup>& sums) {
  constexpr int kFirst = kSecond ? 4 : 0;
  AddSlab<kBits, kGroup, kFirst>(block, x, lane, sums);
  AddSlab<kBits, kGroup, kFirst + 1>(block, x, lane, sums);
  AddSlab<kBits, kGroup, kFirst + 2>(block, x, lane, sums);
  AddSlab<kBits, kGroup, kFirst + 3>(block, x, lane, sums);
}

inline __m256 AddScaled(__m256i dot, __m256 scale, float x_scale, __m256 acc) {
  return _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot),
                         _mm256_mul_ps(scale, _mm256_set1_ps(x_scale)), acc);
}

// One of the two halves of a panel: where a block's codes and scales are, and
// what the header says. `min` is kSuper's -dmin or the minimum of a group, a
// zero point's too.
struct HalfPanel {
  const std::byte* codes;
  const std::byte* scales;
  __m256 scale;
  __m256 min;
};

// `at` points at the header, of the whole panel; `half` is 0 or 1.
template <PackedFormat kFormat>
inline void LoadHeader(const std::byte* at, int half, HalfPanel* to) {
  constexpr DType kType = kFormat.scale_dtype;
  constexpr Scaling kScaling = kFormat.scaling;
  const std::byte* second = at + 2 * kPanelRows;
  to->scale = LoadScales16<kType>(at + 2 * kLanes * half);
  to->min = _mm256_setzero_ps();
  if constexpr (kScaling == Scaling::kSuper || kScaling == Scaling::kGroupMin) {
    to->min = LoadScales16<kType>(second + 2 * kLanes * half);
  } else if constexpr (kScaling == Scaling::kGroupZero) {
    to->min = _mm256_fnmadd_ps(
        to->scale, LoadUnsignedBytes(second + kLanes * half), to->min);
  }
}

template <PackedFormat kFormat, int kGroup>
inline void AddHalvesOfBlock(const HalfPanel& half, const QuadBlock& x,
                             int lane, __m256* acc) {
  constexpr int kBits = kFormat.code_bits;
  constexpr int kShift = kFormat.offset_shift - 3;
  const __m256 first = _mm256_mul_ps(half.scale, LoadSignedBytes(half.scales));
  const __m256 second =
      _mm256_mul_ps(half.scale, LoadSignedBytes(half.scales + kPanelRows));
  BlockSums<kBits, kGroup> sums;
  Clear(sums);
  AddSlabs<kBits, kGroup, false>(half.codes, x, lane, sums);
  __m256i code_sums = sums.codes.Sum();
#pragma GCC unroll 4
  for (int r = 0; r < kGroup; ++r) {
    const int row = lane + r;
    const __m256i dot =
        sums.dots[r].Result(code_sums, Broadcast32(&x.neg_zero[row]),
                            _mm256_set1_epi32(x.neg_sum8_low[row]), kShift);
    acc[r] = AddScaled(dot, first, x.scale[row], acc[r]);
  }
  Clear(sums);
  AddSlabs<kBits, kGroup, true>(half.codes, x, lane, sums);
  code_sums = sums.codes.Sum();
#pragma GCC unroll 4
  for (int r = 0; r < kGroup; ++r) {
    const int row = lane + r;
    const __m256i dot = sums.dots[r].Result(
        code_sums, Broadcast32(&x.neg_zero[row]),
        _mm256_set1_epi32(x.neg_sum8[row] - x.neg_sum8_low[row]), kShift);
    acc[r] = AddScaled(dot, second, x.scale[row], acc[r]);
  }
}

template <PackedFormat kFormat, int kGroup>
inline void AddBlock(const HalfPanel& half, const QuadBlock& x, int lane,
                     __m256* acc) {
  constexpr int kBits = kFormat.code_bits;
  if constexpr (kFormat.scaling == Scaling::kSuper16) {
    AddHalvesOfBlock<kFormat, kGroup>(half, x, lane, acc);
    return;
  }
  __m256 scale = half.scale, min = half.min;
  if constexpr (kFormat.scaling == Scaling::kSuper) {
    scale = _mm256_mul_ps(scale, LoadUnsignedBytes(half.scales));
    min = _mm256_mul_ps(min, LoadUnsignedBytes(half.scales + kPanelRows));
  } else if constexpr (!kFormat.Grouped()) {
    scale = LoadHalves(half.scales);
    if constexpr (kFormat.scaling == Scaling::kScaleMin) {
      min = LoadHalves(half.scales + 2 * kPanelRows);
    }
  }
  BlockSums<kBits, kGroup> sums;
  Clear(sums);
  AddSlabs<kBits, kGroup, false>(half.codes, x, lane, sums);
  AddSlabs<kBits, kGroup, true>(half.codes, x, lane, sums);
  const __m256i code_sums = sums.codes.Sum();
#pragma GCC unroll 4
  for (int r = 0; r < kGroup; ++r) {
    const int row = lane + r;
    const __m256i neg_zero = Broadcast32(&x.neg_zero[row]);
    if constexpr (kFormat.Centred()) {
      const __m256i dot = sums.dots[r].Result(
          code_sums, neg_zero, _mm256_set1_epi32(x.neg_sum8[row]),
          kFormat.offset_shift - 3);
      acc[r] = AddScaled(dot, scale, x.scale[row], acc[r]);
    } else {
      const __m256i dot =
          sums.dots[r].Result(code_sums, neg_zero, _mm256_setzero_si256(), 0);
      acc[r] = AddScaled(dot, scale, x.scale[row], acc[r]);
      acc[r] = _mm256_fmadd_ps(min, _mm256_set1_ps(x.sum[row]), acc[r]);
    }
  }
}

// kGroup rows of one quad, kHalves halves of the panel from `first` on.
template <PackedFormat kFormat, int kGroup, int kHalves>
inline void HalvesDot(const DotCall& call, const QuadBlock* x, int lane,
                      int first, float* out) {
  // The K formats' scales are bytes.
  constexpr bool kBytes = kFormat.HeaderBytes() != 0;
  constexpr int kScaleHalf = kBytes ? kLanes : 2 * kLanes;  // bytes
  __m256 acc[kHalves][kGroup];
  HalfPanel half[kHalves] = {};
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h) {
#pragma GCC unroll 4
    for (int r = 0; r < kGroup; ++r) acc[h][r] = _mm256_setzero_ps();
  }
  const std::byte* at = call.panel;
  int64_t header_blocks = 0;  // left of those that share a header
  for (int64_t b = 0; b < call.blocks; ++b) {
    if (kFormat.HeaderBytes() != 0 && header_blocks-- == 0) {
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) {
        LoadHeader<kFormat>(at, first + h, &half[h]);
      }
      at += kFormat.HeaderBytes();
      header_blocks = call.header_blocks - 1;
    }
    if constexpr (kGroup == kQuad) {
      for (int i = 0; i < kFormat.BlockBytes(); i += kLineBytes) {
        _mm_prefetch(at + kAheadBytes + i, _MM_HINT_T1);
      }
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
  template <PackedFormat kFormat>
  static DotKernels For() {
    return {{PanelDot<kFormat, 1>, PanelDot<kFormat, 2>, PanelDot<kFormat, 4>,
             PanelDot<kFormat, 8>, PanelDot<kFormat, 12>,
             PanelDot<kFormat, 16>}};
  }
};
