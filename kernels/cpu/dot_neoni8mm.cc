// The 8-bit dot products on AArch64 with i8mm: usdot takes unsigned codes as
// they are; usmmla multiplies two rows of weights by two rows of x, eight
// products each.
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/cpu/dot.h"
#include "kernels/cpu/dot_table.h"

#if defined(__aarch64__)

#include <arm_neon.h>

#if !defined(__clang__)
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+dotprod+i8mm")
#else
#pragma clang attribute push(__attribute__((target("dotprod,i8mm"))), \
                             apply_to = function)
#endif

namespace nibble::kernels::cpu {
namespace {

constexpr bool kSignedCodes = false;

template <int kBits>
struct Dots {
  void Clear() { sum = vdupq_n_s32(0); }
  template <int kSlab>
  void Add(uint8x16_t codes, int8x16_t x) {
    sum = vusdotq_laneq_s32(sum, codes, x, kSlab % 4);
  }
  int32x4_t Sum() const { return sum; }

  int32x4_t sum;
};

// Rows 0 and 1, 2 and 3: eight codes of each.
struct QuadX {
  explicit QuadX(const QuadBlock& x) {
    for (int i = 0; i < 2; ++i) {
      for (int pair = 0; pair < 4; ++pair) {
        codes[i][pair] = vcombine_s8(vld1_s8(x.codes[2 * i] + 8 * pair),
                                     vld1_s8(x.codes[2 * i + 1] + 8 * pair));
      }
    }
  }

  int8x16_t codes[2][4];
};

template <int kBits>
struct QuadDots {
  // The eight codes that both slabs have of each lane.
  struct Pair {
    uint8x16_t low, high;  // of lanes 0 and 1, 2 and 3
  };
  static Pair Arrange(uint8x16_t even, uint8x16_t odd) {
    const uint32x4_t a = vreinterpretq_u32_u8(even);
    const uint32x4_t b = vreinterpretq_u32_u8(odd);
    return {vreinterpretq_u8_u32(vzip1q_u32(a, b)),
            vreinterpretq_u8_u32(vzip2q_u32(a, b))};
  }
  void Clear() {
    for (int i = 0; i < 2; ++i) low[i] = high[i] = vdupq_n_s32(0);
  }
  template <int kPair>
  void Add(const Pair& w, const QuadX& x) {
    for (int i = 0; i < 2; ++i) {
      low[i] = vusmmlaq_s32(low[i], w.low, x.codes[i][kPair]);
      high[i] = vusmmlaq_s32(high[i], w.high, x.codes[i][kPair]);
    }
  }
  void Sums(int32x4_t* of_row) const {
    for (int i = 0; i < 2; ++i) {
      of_row[2 * i] = vuzp1q_s32(low[i], high[i]);
      of_row[2 * i + 1] = vuzp2q_s32(low[i], high[i]);
    }
  }

  // Of rows 2 i and 2 i + 1, in turn; of lanes 0 and 1, 2 and 3.
  int32x4_t low[2], high[2];
};

#include "kernels/cpu/dot_neon-inl.h"

}  // namespace

DotKernels NeonI8mmDotKernels(const PackedFormat& format) {
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
DotKernels NeonI8mmDotKernels(const PackedFormat&) { return {}; }
}  // namespace nibble::kernels::cpu

#endif
