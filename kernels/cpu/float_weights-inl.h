// Weights of the float formats as FP32 vectors. Included once for each of
// Highway's targets.
#if defined(NIBBLE_CPU_FLOAT_WEIGHTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_CPU_FLOAT_WEIGHTS_INL_H_
#undef NIBBLE_CPU_FLOAT_WEIGHTS_INL_H_
#else
#define NIBBLE_CPU_FLOAT_WEIGHTS_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/packed_format.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::kernels::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, kPanelRows>;
using FloatVector = hn::Vec<FloatTag>;
// Vectors that hold the 16 rows of a panel.
inline constexpr int kFloatLanes = static_cast<int>(hn::MaxLanes(FloatTag()));
inline constexpr int kFloatVectors = kPanelRows / kFloatLanes;

struct F32Weights {
  using Element = float;
  static HWY_INLINE FloatVector Load(const float* from) {
    return hn::LoadU(FloatTag(), from);
  }
};
struct F16Weights {
  using Element = hwy::float16_t;
  static HWY_INLINE FloatVector Load(const hwy::float16_t* from) {
    const hn::Rebind<hwy::float16_t, FloatTag> half;
    return hn::PromoteTo(FloatTag(), hn::LoadU(half, from));
  }
};
struct BF16Weights {
  using Element = hwy::bfloat16_t;
  static HWY_INLINE FloatVector Load(const hwy::bfloat16_t* from) {
    const hn::Rebind<hwy::bfloat16_t, FloatTag> half;
    return hn::PromoteTo(FloatTag(), hn::LoadU(half, from));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace nibble::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif
