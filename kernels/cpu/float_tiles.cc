#include "kernels/cpu/float_tiles.h"

#include "kernels/cpu/highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/float_tiles.cc"
#include <algorithm>
#include <type_traits>

#include "base/check.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/float_weights-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

// Sums of 6 rows in 16 registers of 8 lanes, of 12 in 32 of 16 lanes: more
// than the 8 chains that hide a multiply-add's latency.
constexpr int kTileRows = kFloatVectors == 1 ? 12 : 6;

// Columns of a block: as FP32, 16 rows of weights take 16 KB.
constexpr int64_t kBlockColumns = 256;

// out [kTileRows, 16] += a block of weights [columns, 16] times a block of a
// tile; `first` starts from zero instead.
HWY_INLINE void AddBlock(const float* HWY_RESTRICT weights,
                         const float* HWY_RESTRICT x, int64_t columns,
                         bool first, float* HWY_RESTRICT out) {
  const FloatTag d;
  FloatVector acc[kTileRows][kFloatVectors];
  HWY_UNROLL(12)
  for (int r = 0; r < kTileRows; ++r) {
    HWY_UNROLL(4)
    for (int v = 0; v < kFloatVectors; ++v) {
      acc[r][v] = first ? hn::Zero(d)
                        : hn::LoadU(d, out + r * kPanelRows + v * kFloatLanes);
    }
  }
  for (int64_t i = 0; i < columns; ++i) {
    FloatVector w[kFloatVectors];
    HWY_UNROLL(4)
    for (int v = 0; v < kFloatVectors; ++v) {
      w[v] = hn::LoadU(d, weights + v * kFloatLanes);
    }
    HWY_UNROLL(12)
    for (int r = 0; r < kTileRows; ++r) {
      const FloatVector xi = hn::Set(d, x[r]);
      HWY_UNROLL(4)
      for (int v = 0; v < kFloatVectors; ++v) {
        acc[r][v] = hn::MulAdd(w[v], xi, acc[r][v]);
      }
    }
    weights += kPanelRows;
    x += kTileRows;
  }
  HWY_UNROLL(12)
  for (int r = 0; r < kTileRows; ++r) {
    HWY_UNROLL(4)
    for (int v = 0; v < kFloatVectors; ++v) {
      hn::StoreU(acc[r][v], d, out + r * kPanelRows + v * kFloatLanes);
    }
  }
}

template <typename Weights>
void TilesDot(const FloatTilesCall& call) {
  const FloatTag d;
  using Element = typename Weights::Element;
  const auto* panel = reinterpret_cast<const Element*>(call.panel);
  alignas(64) float converted[kBlockColumns * kPanelRows];
  const int64_t k = call.x.k;
  for (int64_t begin = 0; begin < k; begin += kBlockColumns) {
    const int64_t columns = std::min(kBlockColumns, k - begin);
    const Element* from = panel + begin * kPanelRows;
    const float* weights = converted;
    if constexpr (std::is_same_v<Element, float>) {
      weights = from;
    } else {
      for (int64_t i = 0; i < columns * kPanelRows; i += kFloatLanes) {
        hn::Store(Weights::Load(from + i), d, converted + i);
      }
    }
    const float* x =
        call.x.data + (begin * call.x.count + call.first * columns) * kTileRows;
    for (int64_t t = 0; t < call.count; ++t) {
      AddBlock(weights, x + t * columns * kTileRows, columns, begin == 0,
               call.out + t * kTileRows * kPanelRows);
    }
  }
}

int TileRowsImpl() { return kTileRows; }

void PackTileImpl(const float* x, int64_t x_stride, int rows, int64_t tile,
                  const FloatTilesView& to) {
  for (int64_t begin = 0; begin < to.k; begin += kBlockColumns) {
    const int64_t columns = std::min(kBlockColumns, to.k - begin);
    float* HWY_RESTRICT out =
        to.data + (begin * to.count + tile * columns) * kTileRows;
    for (int64_t i = 0; i < columns; ++i) {
      for (int r = 0; r < kTileRows; ++r) {
        out[i * kTileRows + r] = r < rows ? x[r * x_stride + begin + i] : 0.0f;
      }
    }
  }
}

void TilesDotImpl(QuantFormat format, const FloatTilesCall& call) {
  switch (format) {
    case QuantFormat::kF32:
      return TilesDot<F32Weights>(call);
    case QuantFormat::kF16:
      return TilesDot<F16Weights>(call);
    case QuantFormat::kBF16:
      return TilesDot<BF16Weights>(call);
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

HWY_EXPORT(TileRowsImpl);
HWY_EXPORT(PackTileImpl);
HWY_EXPORT(TilesDotImpl);

int FloatTileRows() { return HWY_DYNAMIC_DISPATCH(TileRowsImpl)(); }

void PackFloatTile(const float* x, int64_t x_stride, int rows, int64_t tile,
                   const FloatTilesView& to) {
  HWY_DYNAMIC_DISPATCH(PackTileImpl)(x, x_stride, rows, tile, to);
}

void FloatTilesDot(QuantFormat format, const FloatTilesCall& call) {
  HWY_DYNAMIC_DISPATCH(TilesDotImpl)(format, call);
}

}  // namespace nibble::kernels::cpu
#endif
