// From the packed words of w4_layout.h to operands of mma, and from packed
// scales to the two numbers a group of weights needs.
//
// A code becomes a 16-bit number by a mask alone: as the low bits of a
// mantissa under an exponent of zero it is a subnormal number, q * 2^-133 in
// BF16 and q * 2^-24 in FP16, and four places higher the same 16-fold (in BF16
// the highest bit is then the lowest of the exponent, where numbers go on
// evenly). So nothing is added to a code that would have to leave again, and
// two of four pairs need no shift. FP32 products of BF16 subnormals would be
// subnormal too, so x carries kXScale. (The weight could not carry it instead:
// the tensor cores align products by the exponents of their factors, a
// subnormal's being that of the smallest normal number, and give other bits.)
//
//   sum (s q + m) x = f * sum (a x) + c * sum x,   f and c per row and group.
#pragma once

#include "kernels/cuda/linear/mma.cuh"
#include "kernels/cuda/linear/w4_layout.h"

namespace nibble::kernels::cuda {

// A W4Layout as a type: nvcc 13 generates wrong host stubs for kernels with
// template parameters of class type.
template <W4Code kCode, W4Scale kScaleOf, int kGroup>
struct W4Format {
  static constexpr W4Layout kLayout{kCode, kScaleOf, kGroup};
  static constexpr W4Code code = kCode;
  static constexpr W4Scale scale = kScaleOf;
  static constexpr int group = kGroup;
  static constexpr int kGroupsPerBlock = kLayout.GroupsPerBlock();
  static constexpr int kScaleBytes = kLayout.ScaleBytes();
  static constexpr int kBlockScaleBytes = kLayout.BlockScaleBytes();
  static constexpr int kBlockBytes = kLayout.BlockBytes();
};

template <typename F>
inline constexpr bool kNeedsSums = F::code == W4Code::kInt4;

// a * b exactly, b a power of two: minus zero added changes nothing.
__device__ __forceinline__ uint32_t ScaleBf16Pair(uint32_t a, uint32_t b) {
  asm("fma.rn.bf16x2 %0,%0,%1,%2;" : "+r"(a) : "r"(b), "r"(0x80008000u));
  return a;
}

// 2^64 as a BF16 pair. x * kXScale is infinite from |x| = 2^64 on.
inline constexpr uint32_t kXScalePair = 0x5F805F80;
inline constexpr float kXScale = 18446744073709551616.0f;

template <XType X>
inline constexpr bool kScalesX = X == XType::kBF16;

// Eight elements of x as products want them.
template <XType X>
__device__ __forceinline__ uint4 Scaled(uint4 v) {
  if constexpr (kScalesX<X>) {
    v.x = ScaleBf16Pair(v.x, kXScalePair);
    v.y = ScaleBf16Pair(v.y, kXScalePair);
    v.z = ScaleBf16Pair(v.z, kXScalePair);
    v.w = ScaleBf16Pair(v.w, kXScalePair);
  }
  return v;
}

// What a code counts in an operand of row g, kXScale on x included, and how
// many times that in an operand of row g + 8.
template <XType X>
inline constexpr float kCodeUnit = X == XType::kBF16 ? 0x1p-69f : 0x1p-24f;
inline constexpr float kHighUnit = 16;

__device__ __forceinline__ void DecodeInt4(uint32_t w, uint32_t (&a)[4]) {
  a[0] = w & 0x000F000Fu;
  a[1] = w & 0x00F000F0u;
  w >>= 8;
  a[2] = w & 0x000F000Fu;
  a[3] = w & 0x00F000F0u;
}

// What an E2M1 value of 1 is in an operand, kXScale on x included: its bits are
// those of a small 16-bit number, whose exponent has another bias.
template <XType X>
inline constexpr float kValueUnit = X == XType::kBF16 ? 0x1p-62f : 0x1p-14f;

// The bits of kE2m1Bits moved to those of a 16-bit number.
template <XType X>
__device__ __forceinline__ void DecodeE2m1(uint32_t w, uint32_t (&a)[4]) {
  if constexpr (X == XType::kBF16) {
    constexpr uint32_t kBits = 0x81C081C0;  // 15; 8..6
    a[0] = w & kBits;
    a[1] = (w << 3) & kBits;
    a[2] = (w << 6) & kBits;
    a[3] = ((w << 1) & 0x80008000) | ((w >> 4) & 0x00C000C0) |
           ((w >> 5) & 0x01000100);
  } else {
    constexpr uint32_t kSign = 0x80008000;
    constexpr uint32_t kRest = 0x0E000E00;  // 11..9
    a[0] = (w & kSign) | ((w << 3) & kRest);
    a[1] = ((w << 3) & kSign) | ((w << 6) & kRest);
    a[2] = ((w << 6) & kSign) | ((w << 9) & kRest);
    a[3] =
        ((w << 1) & kSign) | ((w >> 1) & 0x06000600) | ((w >> 2) & 0x08000800);
  }
}

// The A operand of one step from a lane's word; x must carry kXScale where
// kScalesX says so.
template <typename F, XType X>
__device__ __forceinline__ void Decode(uint32_t w, uint32_t (&a)[4]) {
  if constexpr (F::code == W4Code::kInt4) {
    DecodeInt4(w, a);
  } else {
    DecodeE2m1<X>(w, a);
  }
}

// f and c of a lane's two rows, g and g + 8, for one group.
struct GroupScale {
  float f0, f1, c0, c1;
};

// Of integer codes, from the scales and minimums of both rows.
template <XType X>
__device__ __forceinline__ GroupScale OfCodes(float s0, float s1, float m0,
                                              float m1) {
  return {s0 * (1 / kCodeUnit<X>), s1 * (1 / kCodeUnit<X> / kHighUnit), m0, m1};
}

// y += a group's part of a 16 x 8 tile of the result: acc is sum (a x), s the
// sums of x of the lane's two columns. The one place that says how.
template <typename F, XType X>
__device__ __forceinline__ void AddGroup(const GroupScale& scale,
                                         const float (&acc)[4], float2 s,
                                         float (&y)[4]) {
  y[0] = fmaf(scale.f0, acc[0], y[0]);
  y[1] = fmaf(scale.f0, acc[1], y[1]);
  y[2] = fmaf(scale.f1, acc[2], y[2]);
  y[3] = fmaf(scale.f1, acc[3], y[3]);
  if constexpr (kNeedsSums<F>) {
    y[0] = fmaf(scale.c0, s.x, y[0]);
    y[1] = fmaf(scale.c0, s.y, y[1]);
    y[2] = fmaf(scale.c1, s.x, y[2]);
    y[3] = fmaf(scale.c1, s.y, y[3]);
  }
}

__device__ __forceinline__ float2 HalfPair(uint32_t pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

// Byte i of a word with its lowest bit at bit `to`; other bits are others'.
template <int kTo>
__device__ __forceinline__ uint32_t ByteTo(uint32_t word, int i) {
  return i * 8 <= kTo ? word << (kTo - i * 8) : word >> (i * 8 - kTo);
}

// What a packed E8M0 byte (w4_layout.h) makes of products with values: the
// exponent of a number, kE8m0Shift of it for BF16's unit.
template <XType X>
__device__ __forceinline__ float E8m0(uint32_t word, int i) {
  static_assert(kValueUnit<XType::kBF16> * (1ull << kE8m0Shift) == 1);
  const float f = __uint_as_float(ByteTo<23>(word, i) & 0x7F800000u);
  constexpr float kMore = kValueUnit<XType::kBF16> / kValueUnit<X>;
  return X == XType::kBF16 ? f : f * kMore;
}

// The same of a packed E4M3 byte: bits 20..27 of a number, which is then
// (8 + m) 2^(e - 130).
template <XType X>
__device__ __forceinline__ float E5m3(uint32_t word, int i) {
  static_assert(kE5m3Bias == 62);
  return __uint_as_float(ByteTo<20>(word, i) & 0x0FF00000u) *
         (0x1p127f * kValueUnit<XType::kBF16> / kValueUnit<X>);
}

// The scales of a block for a lane's two rows, as packed: read into registers
// at once, so that the ring's stage is free before the products begin. `At(i)`
// gives group i, which must be a constant after unrolling.
template <typename F, XType X>
class BlockScales {
 public:
  // scales: the block's scale bytes in shared memory; g = lane / 4.
  __device__ __forceinline__ BlockScales(const char* scales, int g) {
    const char* p = scales + g * (kWords * 4);
    if constexpr (kWords % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        const uint4 v = LoadShared16(p + i * 16);
        raw_[4 * i] = v.x;
        raw_[4 * i + 1] = v.y;
        raw_[4 * i + 2] = v.z;
        raw_[4 * i + 3] = v.w;
      }
    } else {
      static_assert(kWords == 2);
      const uint2 v = *reinterpret_cast<const uint2*>(p);
      raw_[0] = v.x;
      raw_[1] = v.y;
    }
  }

  __device__ __forceinline__ GroupScale At(int i) const {
    if constexpr (F::scale == W4Scale::kScale) {
      const float2 s = HalfPair(raw_[i]);
      return OfCodes<X>(s.x, s.y, s.x * -8.0f, s.y * -8.0f);
    } else if constexpr (F::scale == W4Scale::kScaleMin) {
      const float2 low = HalfPair(raw_[2 * i]);
      const float2 high = HalfPair(raw_[2 * i + 1]);
      return OfCodes<X>(low.x, high.x, low.y, high.y);
    } else if constexpr (F::scale == W4Scale::kScaleZero) {
      const float2 low = HalfPair(raw_[2 * i]);
      const float2 high = HalfPair(raw_[2 * i + 1]);
      return OfCodes<X>(low.x, high.x, low.x * -low.y, high.x * -high.y);
    } else if constexpr (F::scale == W4Scale::kE8m0) {
      return {E8m0<X>(raw_[i / 2], i % 2 * 2),
              E8m0<X>(raw_[i / 2], i % 2 * 2 + 1), 0, 0};
    } else {
      return {E5m3<X>(raw_[i / 2], i % 2 * 2),
              E5m3<X>(raw_[i / 2], i % 2 * 2 + 1), 0, 0};
    }
  }

 private:
  static constexpr int kWords = F::kGroupsPerBlock * F::kScaleBytes / 2;
  uint32_t raw_[kWords];
};

// Q4_K: 6-bit scales and minimums of eight groups, packed in twelve bytes as
// ggml's get_scale_min_k4 reads them.
template <typename F, XType X>
requires(F::scale == W4Scale::kQ4K) class BlockScales<F, X> {
 public:
  __device__ __forceinline__ BlockScales(const char* scales, int g)
      : low_(scales + g * 2 * kQ4KBytes, 1 / kCodeUnit<X>),
        high_(scales + (g * 2 + 1) * kQ4KBytes, 1 / kCodeUnit<X> / kHighUnit) {}

  __device__ __forceinline__ GroupScale At(int i) const {
    const float2 low = low_.At(i), high = high_.At(i);
    return {low.x, high.x, low.y, high.y};
  }

 private:
  struct Row {
    // `unit` is on scales, not on minimums.
    __device__ __forceinline__ Row(const char* p, float unit) {
      const uint4 v = LoadShared16(p);
      const float2 d = HalfPair(v.x);
      d_ = d.x * unit;
      dmin_ = d.y;
      scale_[0] = v.y & 0x3F3F3F3Fu;
      min_[0] = v.z & 0x3F3F3F3Fu;
      scale_[1] = (v.w & 0x0F0F0F0Fu) | (v.y >> 2 & 0x30303030u);
      min_[1] = (v.w >> 4 & 0x0F0F0F0Fu) | (v.z >> 2 & 0x30303030u);
    }
    // Byte i of `word` as a float: the low bits of 2^23's mantissa count ones.
    __device__ __forceinline__ static float Byte(uint32_t word, int i) {
      return __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7440u + i));
    }
    // The group's scale and (negative) minimum, both exact products.
    __device__ __forceinline__ float2 At(int i) const {
      constexpr float kTwo23 = 8388608.0f;
      return make_float2(
          fmaf(Byte(scale_[i / 4], i % 4), d_, -kTwo23 * d_),
          fmaf(Byte(min_[i / 4], i % 4), -dmin_, kTwo23 * dmin_));
    }
    float d_, dmin_;
    uint32_t scale_[2], min_[2];
  };
  Row low_, high_;
};

}  // namespace nibble::kernels::cuda
