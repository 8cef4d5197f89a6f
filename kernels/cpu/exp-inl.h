// The exponential in vectors. Included once for each Highway target.
#if defined(NIBBLE_KERNELS_CPU_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_KERNELS_CPU_EXP_INL_H_
#undef NIBBLE_KERNELS_CPU_EXP_INL_H_
#else
#define NIBBLE_KERNELS_CPU_EXP_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

// e^x, relative error below 3e-7 where the result is a normal number; exactly
// 1 at 0. Below -87 it is 0, above 88 it is e^88 or more (finite or not); NaN
// stays NaN.
//
// x = n ln 2 + r with |r| <= ln(2) / 2; e^r by its Taylor polynomial of degree
// 7 (the next term is 5e-9 at most), times 2^n through the exponent's bits.
template <class D, class V>
HWY_INLINE V Exp(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::Rebind<int32_t, D> di;
  const V low = hn::Set(d, -87.0f), high = hn::Set(d, 88.0f);
  const V clamped = hn::Min(hn::Max(x, low), high);
  const auto n = hn::NearestInt(hn::Mul(clamped, hn::Set(d, 1.44269504f)));
  const V nf = hn::ConvertTo(d, n);
  // ln 2 in two parts, the first of so few bits that n times it is exact. r
  // comes from x, not from `clamped`, so that a NaN gets through.
  V r = hn::NegMulAdd(nf, hn::Set(d, 0.693145752f), hn::Min(x, high));
  r = hn::NegMulAdd(nf, hn::Set(d, 1.42860677e-6f), r);
  V p = hn::Set(d, 1.0f / 5040);
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 720));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 120));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 24));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 6));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  const V power =
      hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127))));
  return hn::IfThenZeroElse(hn::Lt(x, low), hn::Mul(p, power));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace nibble::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard for each target
