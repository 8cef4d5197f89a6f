// The 8-bit dot products in plain C++: what runs where no other target does,
// and the pattern that the others are compared with.
#include <cmath>
#include <cstring>

#include "kernels/cpu/dot.h"
#include "kernels/cpu/dot_table.h"
#include "kernels/reference/half.h"

namespace nibble::kernels::cpu {
namespace {

using reference::BFloat16ToFloat;
using reference::HalfToFloat;

constexpr int kSlabs = 8;
constexpr int kSlabBytes = 64;

template <DType kType = DType::kF16>
void LoadHalves(const std::byte* from, float* to) {
  uint16_t bits[kPanelRows];
  std::memcpy(bits, from, sizeof(bits));
  for (int i = 0; i < kPanelRows; ++i) {
    to[i] =
        kType == DType::kBF16 ? BFloat16ToFloat(bits[i]) : HalfToFloat(bits[i]);
  }
}

// codes [8 slabs][64].
template <int kBits>
void UnpackCodes(const std::byte* block, uint8_t* codes) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(block);
  if constexpr (kBits == 8) {
    std::memcpy(codes, bytes, kSlabs * kSlabBytes);
    return;
  }
  const uint8_t* upper = bytes + kSlabs / 2 * kSlabBytes;
  for (int j = 0; j < kSlabs; ++j) {
    for (int i = 0; i < kSlabBytes; ++i) {
      int code = bytes[j / 2 * kSlabBytes + i] >> (j % 2 * 4) & 0xf;
      if constexpr (kBits == 5) code |= (upper[i] >> j & 1) << 4;
      if constexpr (kBits == 6) {
        const uint8_t plane = upper[j / 4 * kSlabBytes + i];
        code |= (plane >> (j % 4 * 2) & 3) << 4;
      }
      codes[j * kSlabBytes + i] = static_cast<uint8_t>(code);
    }
  }
}

// dots [16] = the sums over slabs [first, last) of code * (x - zero).
void DotSlabs(const uint8_t* codes, const int8_t* x, int neg_zero, int first,
              int last, int32_t* dots) {
  for (int i = 0; i < kPanelRows; ++i) dots[i] = 0;
  for (int j = first; j < last; ++j) {
    for (int i = 0; i < kPanelRows; ++i) {
      const uint8_t* w = codes + j * kSlabBytes + 4 * i;
      for (int t = 0; t < 4; ++t) dots[i] += w[t] * (x[4 * j + t] + neg_zero);
    }
  }
}

// The scales of one block of a panel, as dot.h uses them. `header` is null for
// formats that have none.
struct BlockScales {
  float scale[2][kPanelRows];  // [1] is kSuper16's second half only
  float min[kPanelRows];
};

template <PackedFormat kFormat>
BlockScales LoadScales(const std::byte* header, const std::byte* scales) {
  BlockScales out;
  if constexpr (kFormat.Grouped()) {
    constexpr DType kType = kFormat.scale_dtype;
    LoadHalves<kType>(header, out.scale[0]);
    if constexpr (kFormat.scaling == Scaling::kGroupMin) {
      LoadHalves<kType>(header + 2 * kPanelRows, out.min);
    } else if constexpr (kFormat.scaling == Scaling::kGroupZero) {
      const auto* zeros =
          reinterpret_cast<const uint8_t*>(header + 2 * kPanelRows);
      for (int i = 0; i < kPanelRows; ++i) {
        out.min[i] = std::fma(-out.scale[0][i], zeros[i], 0.0f);
      }
    }
    return out;
  }
  if constexpr (kFormat.HeaderBytes() == 0) {
    LoadHalves(scales, out.scale[0]);
    if constexpr (kFormat.scaling == Scaling::kScaleMin) {
      LoadHalves(scales + 2 * kPanelRows, out.min);
    }
    return out;
  }
  float d[kPanelRows];
  LoadHalves(header, d);
  if constexpr (kFormat.scaling == Scaling::kSuper) {
    LoadHalves(header + 2 * kPanelRows, out.min);
    const auto* sub = reinterpret_cast<const uint8_t*>(scales);
    for (int i = 0; i < kPanelRows; ++i) {
      out.scale[0][i] = d[i] * sub[i];
      out.min[i] *= sub[kPanelRows + i];
    }
  } else if constexpr (kFormat.scaling == Scaling::kSuper16) {
    const auto* sub = reinterpret_cast<const int8_t*>(scales);
    for (int i = 0; i < kPanelRows; ++i) {
      out.scale[0][i] = d[i] * sub[i];
      out.scale[1][i] = d[i] * sub[kPanelRows + i];
    }
  }
  return out;
}

template <PackedFormat kFormat>
void AddBlock(const uint8_t* codes, const BlockScales& scales,
              const QuadBlock& x, int lane, float* acc) {
  constexpr bool kHalves = kFormat.scaling == Scaling::kSuper16;
  for (int half = 0; half < (kHalves ? 2 : 1); ++half) {
    int32_t dots[kPanelRows];
    int32_t neg_sum = 0;
    if constexpr (kHalves) {
      DotSlabs(codes, x.codes[lane], x.all[lane].neg_zero, 4 * half,
               4 * half + 4, dots);
      neg_sum = half == 0 ? x.low[lane].neg_sum
                          : x.all[lane].neg_sum - x.low[lane].neg_sum;
    } else {
      DotSlabs(codes, x.codes[lane], x.all[lane].neg_zero, 0, kSlabs, dots);
      neg_sum = x.all[lane].neg_sum;
    }
    for (int i = 0; i < kPanelRows; ++i) dots[i] += kFormat.Offset() * neg_sum;
    for (int i = 0; i < kPanelRows; ++i) {
      acc[i] = std::fma(static_cast<float>(dots[i]),
                        scales.scale[half][i] * x.scale[lane], acc[i]);
    }
  }
  if constexpr (!kFormat.Centred()) {
    for (int i = 0; i < kPanelRows; ++i) {
      acc[i] = std::fma(scales.min[i], x.sum[lane], acc[i]);
    }
  }
}

template <PackedFormat kFormat, int kRows>
void PanelDot(const DotCall& call) {
  float acc[kRows][kPanelRows] = {};
  const std::byte* at = call.panel;
  const std::byte* header = nullptr;
  for (int64_t b = 0; b < call.blocks; ++b) {
    if (kFormat.HeaderBytes() != 0 && b % call.header_blocks == 0) {
      header = at;
      at += kFormat.HeaderBytes();
    }
    uint8_t codes[kSlabs * kSlabBytes];
    UnpackCodes<kFormat.code_bits>(at, codes);
    const BlockScales scales =
        LoadScales<kFormat>(header, at + kFormat.CodeBytes());
    at += kFormat.BlockBytes();
    for (int r = 0; r < kRows; ++r) {
      const int row = call.lane + r;
      AddBlock<kFormat>(codes, scales,
                        call.x[row / kQuad * call.quad_stride + b], row % kQuad,
                        acc[r]);
    }
  }
  std::memcpy(call.out, acc, sizeof(acc));
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

DotKernels PortableDotKernels(const PackedFormat& format) {
  return MakeDotKernels<Maker>(format);
}

}  // namespace nibble::kernels::cpu
