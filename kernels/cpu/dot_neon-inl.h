// The 8-bit dot products in 128-bit registers: a panel's 16 rows are four
// quarters of 4 lanes. Included once by each target's file, inside its unnamed
// namespace and under its target attributes, after <arm_neon.h>. That file
// defines what its instructions make of codes, 4 lanes each:
//
//   constexpr bool kSignedCodes;  // 8-bit codes are taken less 128
//   template <int kBits> struct Dots {  // of one row
//     void Clear();
//     // x holds the codes of slabs 4 (kSlab / 4) to 4 (kSlab / 4) + 3.
//     template <int kSlab> void Add(uint8x16_t codes, int8x16_t x);
//     int32x4_t Sum() const;
//   };
//   struct QuadX {  // the codes of four rows
//     explicit QuadX(const QuadBlock& x);
//   };
//   template <int kBits> struct QuadDots {  // of four rows
//     // The codes of slabs 2 kPair and 2 kPair + 1 as Add takes them.
//     static Pair Arrange(uint8x16_t even, uint8x16_t odd);
//     void Clear();
//     template <int kPair> void Add(const Pair& codes, const QuadX& x);
//     void Sums(int32x4_t* of_row) const;  // [4]
//   };

constexpr int kSlabs = 8;
constexpr int kPairs = kSlabs / 2;
constexpr int kSlabBytes = 64;
constexpr int kQuarters = 4;
constexpr int kQuarterBytes = 16;
constexpr int kLanes = 4;

// Calls body(std::integral_constant<int, i>) for kCount numbers from kFirst on.
template <int kFirst, int kCount, typename Body>
inline void ForEach(const Body& body) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) {
    (body(std::integral_constant<int, kFirst + kIndex>()), ...);
  }
  (std::make_integer_sequence<int, kCount>());
}

inline uint8x16_t LoadBytes(const std::byte* from) {
  return vld1q_u8(reinterpret_cast<const uint8_t*>(from));
}

template <DType kType>
inline float32x4_t LoadScales16(const std::byte* from) {
  uint16x4_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  if constexpr (kType == DType::kF16) {
    return vcvt_f32_f16(vreinterpret_f16_u16(bits));
  }
  return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(bits), 16));
}

inline float32x4_t LoadUnsignedBytes(const std::byte* from) {
  uint32_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  const uint16x8_t wide = vmovl_u8(vcreate_u8(bits));
  return vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide)));
}

inline float32x4_t LoadSignedBytes(const std::byte* from) {
  uint32_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  const int16x8_t wide = vmovl_s8(vcreate_s8(bits));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}

// The codes of slab kSlab for one quarter of the panel; `block` points at the
// quarter's bytes of slab 0.
template <int kBits, int kSlab>
inline uint8x16_t LoadCodes(const std::byte* block) {
  if constexpr (kBits == 8) {
    const uint8x16_t codes = LoadBytes(block + kSlab * kSlabBytes);
    return kSignedCodes ? veorq_u8(codes, vdupq_n_u8(0x80)) : codes;
  }
  uint8x16_t codes = LoadBytes(block + kSlab / 2 * kSlabBytes);
  codes =
      kSlab % 2 == 1 ? vshrq_n_u8(codes, 4) : vandq_u8(codes, vdupq_n_u8(0xf));
  if constexpr (kBits > 4) {
    constexpr int kPlane = kBits == 5 ? 0 : kSlab / 4;
    constexpr int kAt = kBits == 5 ? kSlab : kSlab % 4 * 2;
    uint8x16_t upper = LoadBytes(block + (kSlabs / 2 + kPlane) * kSlabBytes);
    if constexpr (kAt < 4) upper = vshlq_n_u8(upper, 4 - kAt);
    if constexpr (kAt > 4) upper = vshrq_n_u8(upper, kAt - 4);
    const uint8x16_t mask = vdupq_n_u8(kBits == 5 ? 0x10 : 0x30);
    codes = vorrq_u8(codes, vandq_u8(upper, mask));
  }
  return codes;
}

// One quarter of a panel: where a block's codes and scales are, and what the
// header says. `min` is kSuper's -dmin or the minimum of a group, a zero
// point's too.
struct QuarterPanel {
  const std::byte* codes;
  const std::byte* scales;
  float32x4_t scale;
  float32x4_t min;
};

// Walks a panel block by block. A local of a kernel.
template <PackedFormat kFormat>
struct PanelWalk {
  const std::byte* at;
  int64_t header_blocks = 0;  // left of those that share the header
  QuarterPanel quarter[kQuarters] = {};

  // On to the next block, asking for a later one; `per_header` blocks share a
  // header.
  void Next(int64_t per_header) {
    for (int i = 0; i < kFormat.BlockBytes(); i += kLineBytes) {
      __builtin_prefetch(at + kAheadBytes + i, 0, 2);
    }
    if (kFormat.HeaderBytes() != 0 && header_blocks-- == 0) {
      for (int i = 0; i < kQuarters; ++i) LoadHeader(i);
      at += kFormat.HeaderBytes();
      header_blocks = per_header - 1;
    }
    // The K formats' scales are bytes.
    constexpr int kScaleBytes = kFormat.HeaderBytes() != 0 ? 1 : 2;
    for (int i = 0; i < kQuarters; ++i) {
      quarter[i].codes = at + i * kQuarterBytes;
      quarter[i].scales = at + kFormat.CodeBytes() + i * kLanes * kScaleBytes;
    }
    at += kFormat.BlockBytes();
  }

  void LoadHeader(int i) {
    constexpr DType kType = kFormat.scale_dtype;
    constexpr Scaling kScaling = kFormat.scaling;
    const std::byte* second = at + 2 * kPanelRows;
    quarter[i].scale = LoadScales16<kType>(at + 2 * kLanes * i);
    quarter[i].min = vdupq_n_f32(0);
    if constexpr (kScaling == Scaling::kSuper ||
                  kScaling == Scaling::kGroupMin) {
      quarter[i].min = LoadScales16<kType>(second + 2 * kLanes * i);
    } else if constexpr (kScaling == Scaling::kGroupZero) {
      quarter[i].min = vfmsq_f32(quarter[i].min, quarter[i].scale,
                                 LoadUnsignedBytes(second + kLanes * i));
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
  float32x4_t scale[kParts<kFormat>];
  float32x4_t min;
};

template <PackedFormat kFormat>
inline BlockScales<kFormat> LoadScales(const QuarterPanel& quarter) {
  BlockScales<kFormat> s;
  const std::byte* at = quarter.scales;
  s.min = quarter.min;
  if constexpr (kFormat.scaling == Scaling::kSuper16) {
    s.scale[0] = quarter.scale * LoadSignedBytes(at);
    s.scale[1] = quarter.scale * LoadSignedBytes(at + kPanelRows);
  } else if constexpr (kFormat.scaling == Scaling::kSuper) {
    s.scale[0] = quarter.scale * LoadUnsignedBytes(at);
    s.min = quarter.min * LoadUnsignedBytes(at + kPanelRows);
  } else if constexpr (kFormat.Grouped()) {
    s.scale[0] = quarter.scale;
  } else {
    s.scale[0] = LoadScales16<DType::kF16>(at);
    if constexpr (kFormat.scaling == Scaling::kScaleMin) {
      s.min = LoadScales16<DType::kF16>(at + 2 * kPanelRows);
    }
  }
  return s;
}

// What an offset takes from a part of a row's dot products.
template <PackedFormat kFormat, int kPart>
inline int32_t OffsetPart(const QuadBlock& x, int row) {
  if (!kFormat.Centred() || (kFormat.code_bits == 8 && kSignedCodes)) return 0;
  const int32_t all = x.all[row].neg_sum, low = x.low[row].neg_sum;
  const int32_t part =
      kParts<kFormat> == 1 ? all : (kPart == 0 ? low : all - low);
  return kFormat.Offset() * part;
}

// Adds part kPart of a block to a row's sums.
template <PackedFormat kFormat, int kPart>
inline float32x4_t AddPart(int32x4_t dot, int32x4_t code_sums,
                           const float32x4_t* scale, const QuadBlock& x,
                           int row, float32x4_t acc) {
  dot = vmlaq_n_s32(dot, code_sums, x.all[row].neg_zero) +
        vdupq_n_s32(OffsetPart<kFormat, kPart>(x, row));
  return vfmaq_f32(acc, vcvtq_f32_s32(dot), scale[kPart] * x.scale[row]);
}

template <PackedFormat kFormat>
inline float32x4_t AddMin(float32x4_t min, const QuadBlock& x, int row,
                          float32x4_t acc) {
  if constexpr (kFormat.Centred()) return acc;
  return vfmaq_n_f32(acc, min, x.sum[row]);
}

// Part kPart of a block for one quarter of the panel and kRows rows.
template <PackedFormat kFormat, int kRows, int kPart>
inline void AddRowsPart(const QuarterPanel& quarter, const float32x4_t* scale,
                        const QuadBlock& x, int lane, float32x4_t* acc) {
  constexpr int kBits = kFormat.code_bits;
  Dots<kBits> dots[kRows], code_sums;
  code_sums.Clear();
  for (int r = 0; r < kRows; ++r) dots[r].Clear();
  const auto add_slab = [&]<int kSlab>(std::integral_constant<int, kSlab>) {
    const uint8x16_t codes = LoadCodes<kBits, kSlab>(quarter.codes);
    code_sums.template Add<kSlab>(codes, vdupq_n_s8(1));
    for (int r = 0; r < kRows; ++r) {
      dots[r].template Add<kSlab>(codes,
                                  vld1q_s8(x.codes[lane + r] + kSlab / 4 * 16));
    }
  };
  ForEach<kPart * kPartSlabs<kFormat>, kPartSlabs<kFormat>>(add_slab);
  for (int r = 0; r < kRows; ++r) {
    acc[r] = AddPart<kFormat, kPart>(dots[r].Sum(), code_sums.Sum(), scale, x,
                                     lane + r, acc[r]);
  }
}

// One or two rows of one quad: the panel in one pass, sums in registers.
template <PackedFormat kFormat, int kRows>
inline void RowsDot(const DotCall& call) {
  float32x4_t acc[kQuarters][kRows] = {};
  PanelWalk<kFormat> walk{call.panel};
  for (int64_t b = 0; b < call.blocks; ++b) {
    walk.Next(call.header_blocks);
    const QuadBlock& x = call.x[b];
    for (int i = 0; i < kQuarters; ++i) {
      const QuarterPanel& quarter = walk.quarter[i];
      const BlockScales<kFormat> s = LoadScales<kFormat>(quarter);
      AddRowsPart<kFormat, kRows, 0>(quarter, s.scale, x, call.lane, acc[i]);
      if constexpr (kParts<kFormat> == 2) {
        AddRowsPart<kFormat, kRows, 1>(quarter, s.scale, x, call.lane, acc[i]);
      }
      for (int r = 0; r < kRows; ++r) {
        acc[i][r] = AddMin<kFormat>(s.min, x, call.lane + r, acc[i][r]);
      }
    }
  }
  for (int i = 0; i < kQuarters; ++i) {
    for (int r = 0; r < kRows; ++r) {
      vst1q_f32(call.out + r * kPanelRows + i * kLanes, acc[i][r]);
    }
  }
}

// What rows share of a block, for whole quads: taken apart once, it is read
// from the first cache level by each quad.
template <PackedFormat kFormat>
struct OpenBlock {
  typename QuadDots<kFormat.code_bits>::Pair codes[kQuarters][kPairs];
  int32x4_t sums[kQuarters][kParts<kFormat>];
  BlockScales<kFormat> scales[kQuarters];
};

template <PackedFormat kFormat>
inline void Open(const QuarterPanel& quarter, int i, OpenBlock<kFormat>* to) {
  constexpr int kBits = kFormat.code_bits;
  constexpr int kPartPairs = kPairs / kParts<kFormat>;
  Dots<kBits> sums[kParts<kFormat>];
  for (Dots<kBits>& sum : sums) sum.Clear();
  ForEach<0, kPairs>([&]<int kPair>(std::integral_constant<int, kPair>) {
    const uint8x16_t even = LoadCodes<kBits, 2 * kPair>(quarter.codes);
    const uint8x16_t odd = LoadCodes<kBits, 2 * kPair + 1>(quarter.codes);
    Dots<kBits>& sum = sums[kPair / kPartPairs];
    sum.template Add<2 * kPair>(even, vdupq_n_s8(1));
    sum.template Add<2 * kPair + 1>(odd, vdupq_n_s8(1));
    to->codes[i][kPair] = QuadDots<kBits>::Arrange(even, odd);
  });
  for (int part = 0; part < kParts<kFormat>; ++part) {
    to->sums[i][part] = sums[part].Sum();
  }
  to->scales[i] = LoadScales<kFormat>(quarter);
}

// A block for the four rows of a quad. The sums, out [4, 16], stay in memory.
template <PackedFormat kFormat>
inline void AddQuad(const OpenBlock<kFormat>& block, const QuadBlock& x,
                    float* out) {
  constexpr int kPartPairs = kPairs / kParts<kFormat>;
  const QuadX codes(x);
  for (int i = 0; i < kQuarters; ++i) {
    const BlockScales<kFormat>& scales = block.scales[i];
    float* at = out + i * kLanes;
    float32x4_t acc[kQuad];
    for (int r = 0; r < kQuad; ++r) acc[r] = vld1q_f32(at + r * kPanelRows);
    const auto add_part = [&]<int kPart>(std::integral_constant<int, kPart>) {
      QuadDots<kFormat.code_bits> dots;
      dots.Clear();
      ForEach<kPart * kPartPairs, kPartPairs>(
          [&]<int kPair>(std::integral_constant<int, kPair>) {
            dots.template Add<kPair>(block.codes[i][kPair], codes);
          });
      int32x4_t sums[kQuad];
      dots.Sums(sums);
      for (int r = 0; r < kQuad; ++r) {
        acc[r] = AddPart<kFormat, kPart>(sums[r], block.sums[i][kPart],
                                         scales.scale, x, r, acc[r]);
      }
    };
    ForEach<0, kParts<kFormat>>(add_part);
    for (int r = 0; r < kQuad; ++r) {
      vst1q_f32(at + r * kPanelRows, AddMin<kFormat>(scales.min, x, r, acc[r]));
    }
  }
}

template <PackedFormat kFormat, int kQuads>
inline void QuadsDot(const DotCall& call) {
  std::memset(call.out, 0, sizeof(float) * kQuads * kQuad * kPanelRows);
  PanelWalk<kFormat> walk{call.panel};
  OpenBlock<kFormat> block;
  for (int64_t b = 0; b < call.blocks; ++b) {
    walk.Next(call.header_blocks);
    for (int i = 0; i < kQuarters; ++i) {
      Open<kFormat>(walk.quarter[i], i, &block);
    }
    for (int q = 0; q < kQuads; ++q) {
      const QuadBlock& x = call.x[q * call.quad_stride + b];
      AddQuad<kFormat>(block, x, call.out + q * kQuad * kPanelRows);
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
