// The 8-bit dot products on AArch64 with dotprod: sdot adds four products of
// signed bytes to 32 bits.
#include "kernels/cpu/dot.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/cpu/dot_table.h"

#if defined(__aarch64__)

#include <arm_neon.h>

#if !defined(__clang__)
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+dotprod")
#else
#pragma clang attribute push(__attribute__((target("dotprod"))), \
                             apply_to = function)
#endif

namespace nibble::kernels::cpu {
namespace {

constexpr bool kSignedCodes = true;

template <int kBits>
struct Dots {
  void Clear() { sum = vdupq_n_s32(0); }
  template <int kSlab>
  void Add(uint8x16_t codes, int8x16_t x) {
    sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(codes), x, kSlab % 4);
  }
  int32x4_t Sum() const { return sum; }

  int32x4_t sum;
};

#include "kernels/cpu/dot_neon-byrow-inl.h"
#include "kernels/cpu/dot_neon-inl.h"

}  // namespace

DotKernels NeonDotprodDotKernels(const PackedFormat& format) {
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
DotKernels NeonDotprodDotKernels(const PackedFormat&) { return {}; }
}  // namespace nibble::kernels::cpu

#endif
