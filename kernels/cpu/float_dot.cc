#include "kernels/cpu/float_dot.h"

#include "kernels/cpu/highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/float_dot.cc"
#include "base/check.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/float_weights-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

using D = FloatTag;
using V = FloatVector;

template <typename Weights, int kRows>
void PanelDot(const FloatDotCall& call) {
  const D d;
  constexpr int kLanes = kFloatLanes;
  constexpr int kVectors = kFloatVectors;
  // As many rows at once as the registers hold (16, or 32 with AVX-512).
  V acc[kRows][kVectors];
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::Zero(d);
  }
  using Element = typename Weights::Element;
  const auto* w = reinterpret_cast<const Element*>(call.panel);
  const float* HWY_RESTRICT x = call.x;
  for (int64_t i = 0; i < call.k; ++i, w += kPanelRows) {
    V weights[kVectors];
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v)
      weights[v] = Weights::Load(w + v * kLanes);
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const V xi = hn::Set(d, x[r * call.x_stride + i]);
      HWY_UNROLL(8)
      for (int v = 0; v < kVectors; ++v) {
        acc[r][v] = hn::MulAdd(weights[v], xi, acc[r][v]);
      }
    }
  }
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(acc[r][v], d, call.out + r * kPanelRows + v * kLanes);
    }
  }
}

template <typename Weights>
void Rows(const FloatDotCall& call) {
  FloatDotCall rest = call;
  const auto run = [&rest](auto kernel, int rows) {
    kernel(rest);
    rest.x += rows * rest.x_stride;
    rest.out += rows * kPanelRows;
    rest.rows -= rows;
  };
  // Narrow registers hold the sums of four rows, wide ones of eight.
  if constexpr (kFloatVectors == 1) {
    if (rest.rows == 8) run(PanelDot<Weights, 8>, 8);
  }
  while (rest.rows >= 4) run(PanelDot<Weights, 4>, 4);
  while (rest.rows >= 2) run(PanelDot<Weights, 2>, 2);
  if (rest.rows == 1) run(PanelDot<Weights, 1>, 1);
}

void FloatPanelDotImpl(QuantFormat format, const FloatDotCall& call) {
  switch (format) {
    case QuantFormat::kF32:
      return Rows<F32Weights>(call);
    case QuantFormat::kF16:
      return Rows<F16Weights>(call);
    case QuantFormat::kBF16:
      return Rows<BF16Weights>(call);
    default:
      NIBBLE_CHECK(false);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace nibble::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::kernels::cpu {

HWY_EXPORT(FloatPanelDotImpl);

void FloatPanelDot(QuantFormat format, const FloatDotCall& call) {
  HWY_DYNAMIC_DISPATCH(FloatPanelDotImpl)(format, call);
}

}  // namespace nibble::kernels::cpu
#endif
