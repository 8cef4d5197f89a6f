#include "kernels/cpu/store_sums.h"

#include "kernels/cpu/highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/store_sums.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/packed_format.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, kPanelRows>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
static_assert(kPanelRows % kLanes == 0);

// All 16 columns.
template <Epilogue kEpilogue>
HWY_INLINE void StoreWhole(const PanelSums& panel) {
  const D d;
  const float* sums = panel.sums;
  float* y = panel.y;
  for (int64_t r = 0; r < panel.rows; ++r) {
    HWY_UNROLL(4)
    for (int i = 0; i < kPanelRows; i += kLanes) {
      auto v = hn::Add(hn::LoadU(d, sums + i), hn::LoadU(d, panel.bias + i));
      if constexpr (kEpilogue == Epilogue::kAdd) {
        v = hn::Add(hn::LoadU(d, y + i), v);
      }
      hn::StoreU(v, d, y + i);
    }
    sums += kPanelRows;
    y += panel.y_stride;
  }
}

template <Epilogue kEpilogue>
void StorePart(const PanelSums& panel) {
  const float* sums = panel.sums;
  float* y = panel.y;
  for (int64_t r = 0; r < panel.rows; ++r) {
    for (int64_t i = 0; i < panel.columns; ++i) {
      const float v = sums[i] + panel.bias[i];
      y[i] = kEpilogue == Epilogue::kAdd ? y[i] + v : v;
    }
    sums += kPanelRows;
    y += panel.y_stride;
  }
}

template <Epilogue kEpilogue>
HWY_INLINE void Store(const PanelSums& panel) {
  if (panel.columns == kPanelRows) {
    StoreWhole<kEpilogue>(panel);
  } else {
    StorePart<kEpilogue>(panel);
  }
}

void StoreSumsImpl(const PanelSums& panel, Epilogue epilogue) {
  if (epilogue == Epilogue::kAdd) {
    Store<Epilogue::kAdd>(panel);
  } else {
    Store<Epilogue::kStore>(panel);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace nibble::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::kernels::cpu {

HWY_EXPORT(StoreSumsImpl);

void StoreSums(const PanelSums& panel, Epilogue epilogue) {
  HWY_DYNAMIC_DISPATCH(StoreSumsImpl)(panel, epilogue);
}

}  // namespace nibble::kernels::cpu
#endif
