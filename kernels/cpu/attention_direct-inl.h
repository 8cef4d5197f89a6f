// The loops of attention for rows that stand alone: from the pages, without the
// detour through scratch memory. Included once for each Highway target.
#if defined(NIBBLE_KERNELS_CPU_ATTENTION_DIRECT_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_KERNELS_CPU_ATTENTION_DIRECT_INL_H_
#undef NIBBLE_KERNELS_CPU_ATTENTION_DIRECT_INL_H_
#else
#define NIBBLE_KERNELS_CPU_ATTENTION_DIRECT_INL_H_
#endif

#include <cstdint>
#include <type_traits>

#include "base/checked_math.h"
#include "hwy/highway.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

// Keys and values of a block where they lie: element offsets[key] of the pages
// is dimension 0 of key `key` for one KV head. Borrowed.
struct PagedBlock {
  const hwy::float16_t* keys;
  const hwy::float16_t* values;
  const int64_t* offsets;  // [kKeyBlock]; those after the last key repeat it
  int64_t head_dim;
};

// Asks for the rows (all wanted heads of a key or a value) that come next, a
// few lines at a time, while others are at work. In order of address: only
// then do the prefetchers of the second cache level run ahead, whose misses
// are not bounded by the first level's.
class Ahead final {
 public:
  Ahead(const hwy::float16_t* pages, const int64_t* offsets, int64_t rows,
        int64_t row_elements)
      : pages_(pages),
        offsets_(offsets),
        rows_(rows),
        row_elements_(row_elements) {}

  HWY_INLINE void Fetch(int64_t lines) {
    for (; lines > 0 && row_ < rows_; --lines) {
      constexpr int kRead = 0, kSecondLevel = 2;
      __builtin_prefetch(pages_ + offsets_[row_] + at_, kRead, kSecondLevel);
      at_ += kLineElements;
      if (at_ >= row_elements_) {
        at_ = 0;
        ++row_;
      }
    }
  }
  void FetchAll() { Fetch(rows_ * LinesOf(row_elements_)); }
  static int64_t LinesOf(int64_t elements) {
    return DivideUp(elements, kLineElements);
  }

 private:
  static constexpr int64_t kLineElements = 32;  // 64 bytes

  const hwy::float16_t* pages_;
  const int64_t* offsets_;
  int64_t rows_;
  int64_t row_elements_;
  int64_t row_ = 0;
  int64_t at_ = 0;  // element of the row
};

// Rows that stand alone use each key for few queries: they convert keys and
// values in registers, without the detour through scratch memory.
constexpr int kDirectQueries = 4;  // at once
constexpr int kDirectGroups = 2;   // of keys, whose scores are summed at once
constexpr int kDirectKeys = kDirectGroups * kGroupKeys;

// As ScoreBlock, for kQueries queries: the same sums in the same order.
template <int kQueries>
HWY_NOINLINE void ScoreDirect(const Scratch& s, const PagedBlock& block,
                              int64_t query, int64_t keys, Ahead& ahead) {
  const D d;
  const int64_t stride = kGroupKeys * s.dims;
  for (int64_t key = 0; key < keys; key += kDirectKeys) {
    ahead.Fetch(kDirectKeys * Ahead::LinesOf(block.head_dim));
    V acc[kQueries][kDirectGroups];
    HWY_UNROLL(8)
    for (int a = 0; a < kQueries; ++a) {
      HWY_UNROLL(8)
      for (int g = 0; g < kDirectGroups; ++g) acc[a][g] = hn::Zero(d);
    }
    for (int64_t i = 0; i < s.dims; i += kLanes) {
      HWY_UNROLL(8)
      for (int g = 0; g < kDirectGroups; ++g) {
        V group[kGroupKeys];
        LoadGroup(block.keys, block.offsets + key + g * kGroupKeys, i,
                  block.head_dim, group);
        HWY_UNROLL(8)
        for (int r = 0; r < kGroupKeys; ++r) {
          HWY_UNROLL(8)
          for (int a = 0; a < kQueries; ++a) {
            const V q = hn::LoadU(
                d, s.q + (query + a) * stride + kGroupKeys * i + r * kLanes);
            acc[a][g] = hn::MulAdd(q, group[r], acc[a][g]);
          }
        }
      }
    }
    HWY_UNROLL(8)
    for (int a = 0; a < kQueries; ++a) {
      HWY_UNROLL(8)
      for (int g = 0; g < kDirectGroups; ++g) {
        StorePartSums(
            d, acc[a][g],
            s.scores + (query + a) * kKeyBlock + key + g * kGroupKeys);
      }
    }
  }
}

// As AddValues, from the pages.
template <int kQueries, int kDims>
HWY_NOINLINE void AddDirect(const Scratch& s, const PagedBlock& block,
                            int64_t query, int64_t dim, int64_t keys,
                            Ahead& ahead) {
  const D d;
  const float* HWY_RESTRICT weights = s.scores + query * kKeyBlock;
  float* HWY_RESTRICT sums = s.now.sums + query * s.dims + dim;
  V acc[kQueries][kDims];
  HWY_UNROLL(8)
  for (int a = 0; a < kQueries; ++a) {
    HWY_UNROLL(8)
    for (int i = 0; i < kDims; ++i) {
      acc[a][i] = hn::LoadU(d, sums + a * s.dims + i * kLanes);
    }
  }
  for (int64_t key = 0; key < keys; ++key) {
    const hwy::float16_t* value = block.values + block.offsets[key] + dim;
    ahead.Fetch(Ahead::LinesOf(kDims * kLanes));
    HWY_UNROLL(8)
    for (int i = 0; i < kDims; ++i) {
      const V v =
          LoadHalves(value + i * kLanes, block.head_dim - dim - i * kLanes);
      HWY_UNROLL(8)
      for (int a = 0; a < kQueries; ++a) {
        const V weight = hn::Set(d, weights[a * kKeyBlock + key]);
        acc[a][i] = hn::MulAdd(weight, v, acc[a][i]);
      }
    }
  }
  HWY_UNROLL(8)
  for (int a = 0; a < kQueries; ++a) {
    HWY_UNROLL(8)
    for (int i = 0; i < kDims; ++i) {
      hn::StoreU(acc[a][i], d, sums + a * s.dims + i * kLanes);
    }
  }
}

// As AddValuesAllDims, from the pages.
template <int kQueries>
void AddDirectAllDims(const Scratch& s, const PagedBlock& block, int64_t query,
                      int64_t keys, Ahead& ahead) {
  int64_t dim = 0;
  for (; dim + kDimsAtOnce * kLanes <= s.dims; dim += kDimsAtOnce * kLanes) {
    AddDirect<kQueries, kDimsAtOnce>(s, block, query, dim, keys, ahead);
  }
  for (; dim < s.dims; dim += kLanes) {
    AddDirect<kQueries, 1>(s, block, query, dim, keys, ahead);
  }
}

// Calls visit(first, constant) for queries [0, count) in groups of up to
// kDirectQueries; `constant` says how many.
template <class Visit>
HWY_INLINE void ForDirectQueries(int64_t count, const Visit& visit) {
  int64_t first = 0;
  for (; first + kDirectQueries <= count; first += kDirectQueries) {
    visit(first, std::integral_constant<int, kDirectQueries>());
  }
  if (count - first == 3) visit(first, std::integral_constant<int, 3>());
  if (count - first == 2) visit(first, std::integral_constant<int, 2>());
  if (count - first == 1) visit(first, std::integral_constant<int, 1>());
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace nibble::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard for each target
