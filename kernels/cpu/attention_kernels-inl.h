// The loops of attention over one block of keys. Included once for each Highway
// target.
#if defined(NIBBLE_KERNELS_CPU_ATTENTION_KERNELS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_KERNELS_CPU_ATTENTION_KERNELS_INL_H_
#undef NIBBLE_KERNELS_CPU_ATTENTION_KERNELS_INL_H_
#else
#define NIBBLE_KERNELS_CPU_ATTENTION_KERNELS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/checked_math.h"
#include "hwy/highway.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));

// Keys of a group stand in the lanes of each 128-bit part of a vector.
constexpr int kGroupKeys = kLanes < 4 ? 1 : 4;
// Queries and groups whose scores are summed at once: 16 sums, or 8 where there
// are 16 registers only.
constexpr int kQueriesAtOnce = kLanes == 16 ? 4 : 2;
constexpr int kGroupsAtOnce = 4;
// Vectors of head dimensions whose sums over values are kept at once.
constexpr int kDimsAtOnce = 4;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// What queries know of a block of keys, or of all blocks merged so far.
struct KeySums {
  float* sums;    // [queries][dims], the weighted values
  float* totals;  // [queries][kLanes], the weights, by lane
  float* best;    // [queries], the greatest score
};

// Within AttentionSums(head_dim, queries) floats.
KeySums DivideSums(float* memory, int64_t dims, int64_t queries) {
  KeySums keys;
  keys.sums = memory;
  keys.totals = keys.sums + queries * dims;
  keys.best = keys.totals + queries * kLanes;
  return keys;
}

// The scratch memory of one job, FP32.
struct Scratch {
  int64_t dims;   // head_dim rounded up to whole vectors; the rest is zeros
  float* keys;    // see ArrangeKeys
  float* values;  // [kKeyBlock][dims]
  float* q;       // [queries][4 dims], see ArrangeQuery
  float* scores;  // [queries][kKeyBlock]
  KeySums now;    // of the keys at work
};

Scratch Divide(float* scratch, int64_t head_dim, int64_t queries) {
  Scratch s;
  s.dims = RoundUp<int64_t>(head_dim, kLanes);
  s.keys = scratch;
  s.values = s.keys + kKeyBlock * s.dims;
  s.q = s.values + kKeyBlock * s.dims;
  s.scores = s.q + queries * kGroupKeys * s.dims;
  s.now = DivideSums(s.scores + queries * kKeyBlock, s.dims, queries);
  return s;
}

// The kLanes halves from `from` on as FP32; zeros from `count` on.
HWY_INLINE V LoadHalves(const hwy::float16_t* from, int64_t count) {
  const D d;
  const hn::Rebind<hwy::float16_t, D> d16;
  if (count >= kLanes) return hn::PromoteTo(d, hn::LoadU(d16, from));
  alignas(64) hwy::float16_t padded[kLanes] = {};
  std::copy_n(from, count, padded);
  return hn::PromoteTo(d, hn::Load(d16, padded));
}

// A 4 x 4 transposition within each 128-bit part: vector r gets dimension
// 4 j + r of the four keys in part j.
HWY_INLINE void Transpose(V* HWY_RESTRICT v) {
#if HWY_TARGET != HWY_SCALAR
  const D d;
  const hn::Repartition<uint64_t, D> d64;
  const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, v[0], v[1]));
  const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d, v[0], v[1]));
  const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d, v[2], v[3]));
  const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d, v[2], v[3]));
  v[0] = hn::BitCast(d, hn::InterleaveLower(d64, low01, low23));
  v[1] = hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23));
  v[2] = hn::BitCast(d, hn::InterleaveLower(d64, high01, high23));
  v[3] = hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23));
#else
  (void)v;  // one lane, groups of one key
#endif
}

// Dimensions [i, i + kLanes) of a group of keys, transposed, in
// to[kGroupKeys].
HWY_INLINE void LoadGroup(const hwy::float16_t* pages, const int64_t* offsets,
                          int64_t i, int64_t head_dim, V* HWY_RESTRICT to) {
  const int64_t count = head_dim - i;
  HWY_UNROLL(8)
  for (int key = 0; key < kGroupKeys; ++key) {
    to[key] = LoadHalves(pages + offsets[key] + i, count);
  }
  Transpose(to);
}

// A group of keys, dimension chunk after chunk: [dims / kLanes][kGroupKeys]
// vectors. Whole vectors of scores come out of them without a shuffle.
HWY_INLINE void ArrangeKeys(const hwy::float16_t* pages, const int64_t* offsets,
                            int64_t head_dim, float* HWY_RESTRICT to) {
  for (int64_t i = 0; i < head_dim; i += kLanes) {
    V group[kGroupKeys];
    LoadGroup(pages, offsets, i, head_dim, group);
    HWY_UNROLL(8)
    for (int r = 0; r < kGroupKeys; ++r) {
      hn::StoreU(group[r], D(), to + kGroupKeys * i + r * kLanes);
    }
  }
}

// The query's side of ArrangeKeys: element 4 j + r of a chunk, times `scale`,
// in all lanes of part j of vector r.
void ArrangeQuery(const float* q, float scale, int64_t head_dim, int64_t dims,
                  float* to) {
  for (int64_t i = 0; i < dims; ++i) {
    const float value = i < head_dim ? q[i] * scale : 0.0f;
    if constexpr (kGroupKeys == 1) {
      to[i] = value;
      continue;
    }
    const int64_t chunk = i / kLanes, part = i % kLanes / 4, r = i % 4;
    std::fill_n(to + (4 * chunk + r) * kLanes + 4 * part, 4, value);
  }
}

// The sums of a vector over its 128-bit parts, halves first.
template <class D2, class V2>
HWY_INLINE void StorePartSums(D2 d, V2 v, float* to) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (hn::MaxLanes(D2()) > 4) {
    const hn::Half<D2> half;
    StorePartSums(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)),
                  to);
    return;
  }
#endif
  hn::StoreU(v, d, to);
}

// StorePartSums of kGroupsAtOnce groups, with the same additions.
HWY_INLINE void StoreGroupSums(const V* HWY_RESTRICT acc,
                               float* HWY_RESTRICT to) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kLanes == 16) {
    const D d;
    // The halves of two groups, one beside the other.
    const auto add_halves = [d](V a, V b) {
      const V sums =
          hn::Add(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
      return hn::Add(sums, hn::SwapAdjacentBlocks(sums));
    };
    const V even = add_halves(acc[0], acc[2]), odd = add_halves(acc[1], acc[3]);
    hn::StoreU(hn::OddEvenBlocks(odd, even), d, to);
    return;
  }
#endif
  HWY_UNROLL(8)
  for (int g = 0; g < kGroupsAtOnce; ++g) {
    StorePartSums(D(), acc[g], to + g * kGroupKeys);
  }
}

// Scores of kQueries queries with kGroupsAtOnce groups of keys.
template <int kQueries>
HWY_INLINE void ScoreGroups(const float* HWY_RESTRICT keys,
                            const float* HWY_RESTRICT q, int64_t dims,
                            float* HWY_RESTRICT scores) {
  const D d;
  const int64_t stride = kGroupKeys * dims;
  V acc[kQueries][kGroupsAtOnce];
  HWY_UNROLL(8)
  for (int a = 0; a < kQueries; ++a) {
    HWY_UNROLL(8)
    for (int g = 0; g < kGroupsAtOnce; ++g) acc[a][g] = hn::Zero(d);
  }
  for (int64_t i = 0; i < stride; i += kLanes) {
    V query[kQueries];
    HWY_UNROLL(8)
    for (int a = 0; a < kQueries; ++a) {
      query[a] = hn::LoadU(d, q + a * stride + i);
    }
    HWY_UNROLL(8)
    for (int g = 0; g < kGroupsAtOnce; ++g) {
      const V key = hn::LoadU(d, keys + g * stride + i);
      HWY_UNROLL(8)
      for (int a = 0; a < kQueries; ++a) {
        acc[a][g] = hn::MulAdd(query[a], key, acc[a][g]);
      }
    }
  }
  HWY_UNROLL(8)
  for (int a = 0; a < kQueries; ++a) {
    StoreGroupSums(acc[a], scores + a * kKeyBlock);
  }
}

// Calls visit(first, constant) for queries [first, last) in groups of
// kQueriesAtOnce, then of 2 and 1; `constant` says how many.
template <class Visit>
HWY_INLINE void ForQueries(int64_t first, int64_t last, const Visit& visit) {
  for (; first + kQueriesAtOnce <= last; first += kQueriesAtOnce) {
    visit(first, std::integral_constant<int, kQueriesAtOnce>());
  }
  for (; first + 2 <= last; first += 2) {
    visit(first, std::integral_constant<int, 2>());
  }
  if (first < last) visit(first, std::integral_constant<int, 1>());
}

// Scores of all queries from `first` on with the first `keys` keys of the
// block, and with some after those, which mean nothing. The block's keys stay
// in the first cache level, the queries pass through it once.
void ScoreBlock(const Scratch& s, int64_t first, int64_t queries,
                int64_t keys) {
  constexpr int64_t kStep = kGroupsAtOnce * kGroupKeys;
  ForQueries(first, queries, [&](int64_t a, auto count) {
    for (int64_t key = 0; key < keys; key += kStep) {
      ScoreGroups<count()>(s.keys + key * s.dims, s.q + a * kGroupKeys * s.dims,
                           s.dims, s.scores + a * kKeyBlock + key);
    }
  });
}

// Turns the first `keys` scores of a query into weights relative to the
// greatest of them.
void Softmax(const Scratch& s, int64_t query, int64_t keys) {
  const D d;
  float* HWY_RESTRICT scores = s.scores + query * kKeyBlock;
  for (int64_t i = keys; i < RoundUp<int64_t>(keys, kLanes); ++i) {
    scores[i] = kMinusInfinity;
  }
  V most = hn::Set(d, kMinusInfinity);
  for (int64_t i = 0; i < keys; i += kLanes) {
    most = hn::Max(most, hn::LoadU(d, scores + i));
  }
  const V best = hn::MaxOfLanes(d, most);
  V total = hn::Zero(d);
  for (int64_t i = 0; i < keys; i += kLanes) {
    const V weight = Exp(d, hn::Sub(hn::LoadU(d, scores + i), best));
    total = hn::Add(total, weight);
    hn::StoreU(weight, d, scores + i);
  }
  hn::StoreU(total, d, s.now.totals + query * kLanes);
  s.now.best[query] = hn::GetLane(best);
}

// Adds what query `query` knows of a later block to `whole`, what it knows of
// all before.
void MergeKeys(const KeySums& whole, const KeySums& block, int64_t dims,
               int64_t query) {
  const D d;
  const float best = std::max(whole.best[query], block.best[query]);
  const V before = Exp(d, hn::Set(d, whole.best[query] - best));
  const V after = Exp(d, hn::Set(d, block.best[query] - best));
  whole.best[query] = best;
  const auto add = [&](float* HWY_RESTRICT to, const float* HWY_RESTRICT from) {
    const V scaled = hn::Mul(hn::LoadU(d, to), before);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, from), after, scaled), d, to);
  };
  add(whole.totals + query * kLanes, block.totals + query * kLanes);
  for (int64_t i = query * dims; i < (query + 1) * dims; i += kLanes) {
    add(whole.sums + i, block.sums + i);
  }
}

// out [head_dim] = the weighted mean of the values.
void FinishQuery(const KeySums& whole, int64_t dims, int64_t query,
                 int64_t head_dim, float* out) {
  const D d;
  const V totals = hn::LoadU(d, whole.totals + query * kLanes);
  const float inverse = 1.0f / hn::GetLane(hn::SumOfLanes(d, totals));
  const float* sums = whole.sums + query * dims;
  for (int64_t i = 0; i < head_dim; ++i) out[i] = sums[i] * inverse;
}

// sums += weight * value over keys [begin, end), for kQueries queries and
// kDims vectors of dimensions.
template <int kQueries, int kDims>
HWY_INLINE void AddValues(const Scratch& s, const float* HWY_RESTRICT values,
                          int64_t query, int64_t dim, int64_t begin,
                          int64_t end) {
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
  for (int64_t key = begin; key < end; ++key) {
    V value[kDims];
    HWY_UNROLL(8)
    for (int i = 0; i < kDims; ++i) {
      value[i] = hn::LoadU(d, values + key * s.dims + dim + i * kLanes);
    }
    HWY_UNROLL(8)
    for (int a = 0; a < kQueries; ++a) {
      const V weight = hn::Set(d, weights[a * kKeyBlock + key]);
      HWY_UNROLL(8)
      for (int i = 0; i < kDims; ++i) {
        acc[a][i] = hn::MulAdd(weight, value[i], acc[a][i]);
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

template <int kQueries>
void AddValuesAllDims(const Scratch& s, int64_t query, int64_t begin,
                      int64_t end) {
  int64_t dim = 0;
  for (; dim + kDimsAtOnce * kLanes <= s.dims; dim += kDimsAtOnce * kLanes) {
    AddValues<kQueries, kDimsAtOnce>(s, s.values, query, dim, begin, end);
  }
  for (; dim < s.dims; dim += kLanes) {
    AddValues<kQueries, 1>(s, s.values, query, dim, begin, end);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace nibble::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard for each target
