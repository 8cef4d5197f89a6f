// The 8-bit dot products on every AArch64: products added up in 16 bits.
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/cpu/dot.h"
#include "kernels/cpu/dot_table.h"

#if defined(__aarch64__)

#include <arm_neon.h>

namespace nibble::kernels::cpu {
namespace {

constexpr bool kSignedCodes = true;

// smlal adds products of signed bytes to 16 bits. With |x| <= 127 eight
// products of 5-bit codes, four of 6-bit ones (as many as Q6_K adds) and two
// of centred 8-bit ones fit.
template <int kBits>
struct Dots {
  static constexpr int kSlabsIn16Bits = kBits == 8 ? 2 : kBits == 6 ? 4 : 8;
  static constexpr int kGreatest = kBits == 8 ? 128 : (1 << kBits) - 1;
  static_assert(kSlabsIn16Bits * 127 * kGreatest <= 32767,
                "the 16-bit sums would overflow");

  void Clear() {
    low = high = vdupq_n_s16(0);
    low32 = high32 = vdupq_n_s32(0);
  }
  template <int kSlab>
  void Add(uint8x16_t codes, int8x16_t x) {
    const int8x16_t w = vreinterpretq_s8_u8(codes);
    const int8x8_t xi =
        vreinterpret_s8_s32(vdup_laneq_s32(vreinterpretq_s32_s8(x), kSlab % 4));
    low = vmlal_s8(low, vget_low_s8(w), xi);
    high = vmlal_s8(high, vget_high_s8(w), xi);
    if constexpr ((kSlab + 1) % kSlabsIn16Bits == 0) {
      low32 = vpadalq_s16(low32, low);
      high32 = vpadalq_s16(high32, high);
      low = high = vdupq_n_s16(0);
    }
  }
  int32x4_t Sum() const { return vpaddq_s32(low32, high32); }

  int16x8_t low, high;  // of lanes 0 and 1, 2 and 3
  int32x4_t low32, high32;
};

#include "kernels/cpu/dot_neon-byrow-inl.h"
#include "kernels/cpu/dot_neon-inl.h"

}  // namespace

DotKernels NeonDotKernels(const PackedFormat& format) {
  return MakeDotKernels<Maker>(format);
}

}  // namespace nibble::kernels::cpu

#else

namespace nibble::kernels::cpu {
DotKernels NeonDotKernels(const PackedFormat&) { return {}; }
}  // namespace nibble::kernels::cpu

#endif
