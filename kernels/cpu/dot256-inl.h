// The 8-bit dot products in 256-bit registers: a panel's 16 rows are two
// halves of 8 lanes. Included once by each target's file, inside its unnamed
// namespace and under its target attributes, after <immintrin.h>. That file
// defines what its instructions make of a slab's codes, 8 lanes each:
//
//   template <int kBits> struct Codes {  // as Dots takes them
//     explicit Codes(__m256i codes);
//   };
//   template <int kBits> struct Dots {  // of one row
//     void Clear();
//     template <int kSlab> void Add(const Codes<kBits>& codes, __m256i x);
//     // Of (code - offset) * (x - zero) over the slabs added, given pairs of
//     // the Sum of their codes and the offset, and the Correction of their x.
//     __m256i Result(__m256i sums, __m256i correction);
//   };
//   template <int kBits> struct CodeSums {
//     void Clear();
//     void Add(const Codes<kBits>& codes);
//     __m256i Sum();  // of the codes: in the lower 16 bits, the others are 0
//   };
//   // Whether Codes<8> takes the offset away itself.
//   constexpr bool kCentredBytes;
//   // Slabs of a row that are added before the next row's, when four rows are:
//   // as many as share short-lived sums. 1, 2 or 4.
//   template <int kBits> constexpr int kSlabsAtOnce;

constexpr int kSlabs = 8;
constexpr int kSlabBytes = 64;
constexpr int kHalfBytes = 32;
constexpr int kLanes = 8;
constexpr int kHalves = 2;

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

// Calls body(std::integral_constant<int, slab>) for kCount slabs from kFirst
// on.
template <int kFirst, int kCount, typename Body>
inline void ForSlabs(const Body& body) {
  [&]<int... kSlab>(std::integer_sequence<int, kSlab...>) {
    (body(std::integral_constant<int, kFirst + kSlab>()), ...);
  }
  (std::make_integer_sequence<int, kCount>());
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

// One of the two halves of a panel: where a block's codes and scales are, and
// what the header says. `min` is kSuper's -dmin or the minimum of a group, a
// zero point's too.
struct HalfPanel {
  const std::byte* codes;
  const std::byte* scales;
  __m256 scale;
  __m256 min;
};

// Walks both halves of a panel, block by block. A local of a kernel.
template <PackedFormat kFormat>
struct PanelWalk {
  const std::byte* at;
  int64_t header_blocks = 0;  // left of those that share the header
  HalfPanel half[kHalves] = {};

  // On to the next block, asking for a later one; `per_header` blocks share a
  // header.
  void Next(int64_t per_header) {
    for (int i = 0; i < kFormat.BlockBytes(); i += kLineBytes) {
      _mm_prefetch(at + kAheadBytes + i, _MM_HINT_T1);
    }
    if (kFormat.HeaderBytes() != 0 && header_blocks-- == 0) {
      LoadHeader(0);
      LoadHeader(1);
      at += kFormat.HeaderBytes();
      header_blocks = per_header - 1;
    }
    // The K formats' scales are bytes.
    constexpr int kScaleBytes = kFormat.HeaderBytes() != 0 ? 1 : 2;
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) {
      half[h].codes = at + h * kHalfBytes;
      half[h].scales = at + kFormat.CodeBytes() + h * kLanes * kScaleBytes;
    }
    at += kFormat.BlockBytes();
  }

  void LoadHeader(int h) {
    constexpr DType kType = kFormat.scale_dtype;
    constexpr Scaling kScaling = kFormat.scaling;
    const std::byte* second = at + 2 * kPanelRows;
    half[h].scale = LoadScales16<kType>(at + 2 * kLanes * h);
    half[h].min = _mm256_setzero_ps();
    if constexpr (kScaling == Scaling::kSuper ||
                  kScaling == Scaling::kGroupMin) {
      half[h].min = LoadScales16<kType>(second + 2 * kLanes * h);
    } else if constexpr (kScaling == Scaling::kGroupZero) {
      half[h].min = _mm256_fnmadd_ps(
          half[h].scale, LoadUnsignedBytes(second + kLanes * h), half[h].min);
    }
  }
};

// Parts of a block that have scales of their own: the halves of k of kSuper16.
template <PackedFormat kFormat>
constexpr int kParts = kFormat.scaling == Scaling::kSuper16 ? 2 : 1;
template <PackedFormat kFormat>
constexpr int kPartSlabs = kSlabs / kParts<kFormat>;

template <PackedFormat kFormat>
struct BlockScales {
  __m256 scale[kParts<kFormat>];
  __m256 min;
};

template <PackedFormat kFormat>
inline BlockScales<kFormat> LoadScales(const HalfPanel& half) {
  BlockScales<kFormat> s;
  s.min = half.min;
  if constexpr (kFormat.scaling == Scaling::kSuper16) {
    s.scale[0] = _mm256_mul_ps(half.scale, LoadSignedBytes(half.scales));
    s.scale[1] =
        _mm256_mul_ps(half.scale, LoadSignedBytes(half.scales + kPanelRows));
  } else if constexpr (kFormat.scaling == Scaling::kSuper) {
    s.scale[0] = _mm256_mul_ps(half.scale, LoadUnsignedBytes(half.scales));
    s.min =
        _mm256_mul_ps(half.min, LoadUnsignedBytes(half.scales + kPanelRows));
  } else if constexpr (kFormat.Grouped()) {
    s.scale[0] = half.scale;
  } else {
    s.scale[0] = LoadHalves(half.scales);
    if constexpr (kFormat.scaling == Scaling::kScaleMin) {
      s.min = LoadHalves(half.scales + 2 * kPanelRows);
    }
  }
  return s;
}

// The pairs (sum of codes, offset) that meet a Correction.
template <PackedFormat kFormat>
inline __m256i SumPairs(__m256i sums) {
  constexpr bool kOffset =
      kFormat.Centred() && !(kFormat.code_bits == 8 && kCentredBytes);
  if constexpr (!kOffset) return sums;
  return _mm256_or_si256(sums, _mm256_set1_epi32(kFormat.Offset() << 16));
}

// Of a part of a row's x.
template <PackedFormat kFormat, int kPart>
inline __m256i LoadCorrection(const QuadBlock& x, int row) {
  if constexpr (kParts<kFormat> == 1) return Broadcast32(&x.all[row]);
  const __m256i low = Broadcast32(&x.low[row]);
  if constexpr (kPart == 0) return low;
  // The sum over all less that over the first half; neg_zero stays.
  const __m256i low_sum =
      _mm256_and_si256(low, _mm256_set1_epi32(~int32_t{0xffff}));
  return _mm256_sub_epi16(Broadcast32(&x.all[row]), low_sum);
}

// Adds part kPart of a block to a row's sums.
template <PackedFormat kFormat, int kPart>
inline __m256 AddPart(const Dots<kFormat.code_bits>& dots, __m256i code_sums,
                      const __m256* scale, const QuadBlock& x, int row,
                      __m256 acc) {
  const __m256i dot =
      dots.Result(code_sums, LoadCorrection<kFormat, kPart>(x, row));
  return _mm256_fmadd_ps(
      _mm256_cvtepi32_ps(dot),
      _mm256_mul_ps(scale[kPart], _mm256_set1_ps(x.scale[row])), acc);
}

template <PackedFormat kFormat>
inline __m256 AddMin(__m256 min, const QuadBlock& x, int row, __m256 acc) {
  if constexpr (kFormat.Centred()) return acc;
  return _mm256_fmadd_ps(min, _mm256_set1_ps(x.sum[row]), acc);
}

// Part kPart of a block for one half of the panel and kRows rows.
template <PackedFormat kFormat, int kRows, int kPart>
inline void AddRowsPart(const HalfPanel& half, const __m256* scale,
                        const QuadBlock& x, int lane, __m256* acc) {
  constexpr int kBits = kFormat.code_bits;
  Dots<kBits> dots[kRows];
  CodeSums<kBits> code_sums;
  code_sums.Clear();
#pragma GCC unroll 2
  for (int r = 0; r < kRows; ++r) dots[r].Clear();
  const auto add_slab = [&]<int kSlab>(std::integral_constant<int, kSlab>) {
    const Codes<kBits> codes(LoadCodes<kBits, kSlab>(half.codes));
    code_sums.Add(codes);
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r) {
      dots[r].template Add<kSlab>(codes,
                                  Broadcast32(x.codes[lane + r] + 4 * kSlab));
    }
  };
  ForSlabs<kPart * kPartSlabs<kFormat>, kPartSlabs<kFormat>>(add_slab);
  const __m256i sums = SumPairs<kFormat>(code_sums.Sum());
#pragma GCC unroll 2
  for (int r = 0; r < kRows; ++r) {
    acc[r] = AddPart<kFormat, kPart>(dots[r], sums, scale, x, lane + r, acc[r]);
  }
}

// One or two rows of one quad: the panel in one pass, sums in registers.
template <PackedFormat kFormat, int kRows>
inline void RowsDot(const DotCall& call) {
  __m256 acc[kHalves][kRows];
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h) {
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r) acc[h][r] = _mm256_setzero_ps();
  }
  PanelWalk<kFormat> walk{call.panel};
  for (int64_t b = 0; b < call.blocks; ++b) {
    walk.Next(call.header_blocks);
    const QuadBlock& x = call.x[b];
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) {
      const BlockScales<kFormat> s = LoadScales<kFormat>(walk.half[h]);
      AddRowsPart<kFormat, kRows, 0>(walk.half[h], s.scale, x, call.lane,
                                     acc[h]);
      if constexpr (kParts<kFormat> == 2) {
        AddRowsPart<kFormat, kRows, 1>(walk.half[h], s.scale, x, call.lane,
                                       acc[h]);
      }
#pragma GCC unroll 2
      for (int r = 0; r < kRows; ++r) {
        acc[h][r] = AddMin<kFormat>(s.min, x, call.lane + r, acc[h][r]);
      }
    }
  }
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h) {
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r) {
      _mm256_storeu_ps(call.out + r * kPanelRows + h * kLanes, acc[h][r]);
    }
  }
}

// What rows share of a block, for whole quads: taken apart once, it is read
// from the first cache level by each quad.
template <PackedFormat kFormat>
struct OpenBlock {
  Codes<kFormat.code_bits> codes[kHalves][kSlabs];
  __m256i sums[kHalves][kParts<kFormat>];
  BlockScales<kFormat> scales[kHalves];
};

template <PackedFormat kFormat>
inline void Open(const HalfPanel& half, int h, OpenBlock<kFormat>* to) {
  constexpr int kBits = kFormat.code_bits;
  ForSlabs<0, kSlabs>([&]<int kSlab>(std::integral_constant<int, kSlab>) {
    to->codes[h][kSlab] = Codes<kBits>(LoadCodes<kBits, kSlab>(half.codes));
  });
#pragma GCC unroll 2
  for (int part = 0; part < kParts<kFormat>; ++part) {
    CodeSums<kBits> sums;
    sums.Clear();
#pragma GCC unroll 8
    for (int j = 0; j < kPartSlabs<kFormat>; ++j) {
      sums.Add(to->codes[h][part * kPartSlabs<kFormat> + j]);
    }
    to->sums[h][part] = SumPairs<kFormat>(sums.Sum());
  }
  to->scales[h] = LoadScales<kFormat>(half);
}

// kMany slabs from kSlab on, for row r of a quad. Left out of line, it would
// keep the sums in memory.
template <PackedFormat kFormat, int kSlab, int kMany>
[[gnu::always_inline]] inline void AddSlabs(
    const OpenBlock<kFormat>& block, const QuadBlock& x, int r,
    Dots<kFormat.code_bits> (*dots)[kQuad]) {
  const __m256i codes = Broadcast32(x.codes[r] + 4 * kSlab);
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h) {
    dots[h][r].template Add<kSlab>(block.codes[h][kSlab], codes);
  }
  if constexpr (kMany > 1) {
    AddSlabs<kFormat, kSlab + 1, kMany - 1>(block, x, r, dots);
  }
}

// Part kPart of a block for the four rows of a quad.
template <PackedFormat kFormat, int kPart>
inline void AddQuadPart(const OpenBlock<kFormat>& block, const QuadBlock& x,
                        __m256 (*acc)[kQuad]) {
  constexpr int kBits = kFormat.code_bits;
  Dots<kBits> dots[kHalves][kQuad];
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h) {
#pragma GCC unroll 4
    for (int r = 0; r < kQuad; ++r) dots[h][r].Clear();
  }
  constexpr int kMany = kSlabsAtOnce<kBits>;
  constexpr int kSteps = kPartSlabs<kFormat> / kMany;
  ForSlabs<kPart * kSteps, kSteps>(
      [&]<int kStep>(std::integral_constant<int, kStep>) {
#pragma GCC unroll 4
        for (int r = 0; r < kQuad; ++r) {
          AddSlabs<kFormat, kStep * kMany, kMany>(block, x, r, dots);
        }
      });
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h) {
#pragma GCC unroll 4
    for (int r = 0; r < kQuad; ++r) {
      acc[h][r] =
          AddPart<kFormat, kPart>(dots[h][r], block.sums[h][kPart],
                                  block.scales[h].scale, x, r, acc[h][r]);
    }
  }
}

// The same of all of a block. The sums, out [4, 16], stay in memory: there
// are no registers for them.
template <PackedFormat kFormat>
inline void AddQuad(const OpenBlock<kFormat>& block, const QuadBlock& x,
                    float* out) {
  __m256 acc[kHalves][kQuad];
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h) {
#pragma GCC unroll 4
    for (int r = 0; r < kQuad; ++r) {
      acc[h][r] = _mm256_loadu_ps(out + r * kPanelRows + h * kLanes);
    }
  }
  AddQuadPart<kFormat, 0>(block, x, acc);
  if constexpr (kParts<kFormat> == 2) AddQuadPart<kFormat, 1>(block, x, acc);
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h) {
#pragma GCC unroll 4
    for (int r = 0; r < kQuad; ++r) {
      _mm256_storeu_ps(out + r * kPanelRows + h * kLanes,
                       AddMin<kFormat>(block.scales[h].min, x, r, acc[h][r]));
    }
  }
}

template <PackedFormat kFormat, int kQuads>
inline void QuadsDot(const DotCall& call) {
  for (int i = 0; i < kQuads * kQuad * kPanelRows; i += kLanes) {
    _mm256_storeu_ps(call.out + i, _mm256_setzero_ps());
  }
  PanelWalk<kFormat> walk{call.panel};
  OpenBlock<kFormat> block;
  for (int64_t b = 0; b < call.blocks; ++b) {
    walk.Next(call.header_blocks);
    Open<kFormat>(walk.half[0], 0, &block);
    Open<kFormat>(walk.half[1], 1, &block);
    for (int q = 0; q < kQuads; ++q) {
      AddQuad<kFormat>(block, call.x[q * call.quad_stride + b],
                       call.out + q * kQuad * kPanelRows);
    }
  }
}

template <PackedFormat kFormat, int kRows>
void PanelDot(const DotCall& call) {
  if constexpr (kRows < kQuad) {
    RowsDot<kFormat, kRows>(call);
  } else {
    QuadsDot<kFormat, kRows / kQuad>(call);
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
