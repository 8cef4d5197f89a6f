#include "kernels/cpu/attention.h"

#include "kernels/cpu/highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cc"
#include <algorithm>

#include "base/checked_math.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/attention_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

// One job at work. Lives on the stack of RunAttention.
class Walk final {
 public:
  Walk(const AttentionJob& job, float* scratch)
      : job_(job),
        queries_(int64_t{job.tile.rows} * job.heads),
        s_(Divide(scratch, job.head_dim, queries_)) {}

  void Run() {
    Start();
    const int32_t length = job_.tile.position + job_.tile.rows;
    for (int32_t begin = 0; begin < length; begin += kKeyBlock) {
      const int32_t keys = std::min(kKeyBlock, length - begin);
      FindOffsets(begin, keys);
      if (job_.tile.rows == 1) {
        BlockOfOneRow(keys);
      } else {
        LoadBlock(keys);
        Block(begin, keys);
      }
    }
    Finish();
  }

 private:
  int64_t Row(int64_t query) const { return query / job_.heads; }
  int64_t Head(int64_t query) const {
    return job_.first_head + query % job_.heads;
  }
  // Keys of the block at `begin` that a query sees; may be 0 or less.
  int64_t Seen(int64_t query, int32_t begin) const {
    return std::min<int64_t>(kKeyBlock,
                             job_.tile.position + Row(query) + 1 - begin);
  }

  void Start() {
    for (int64_t query = 0; query < queries_; ++query) {
      const float* q = job_.q.RowF32(job_.tile.first_row + Row(query)) +
                       Head(query) * job_.head_dim;
      ArrangeQuery(q, job_.scale, job_.head_dim, s_.dims,
                   s_.q + query * kGroupKeys * s_.dims);
    }
    std::fill_n(s_.sums, queries_ * s_.dims, 0.0f);
    std::fill_n(s_.totals, queries_ * kLanes, 0.0f);
    std::fill_n(s_.best, queries_, kMinusInfinity);
  }

  // offsets_ of the keys at positions [begin, begin + keys). A group's missing
  // keys are the last one again; nobody reads what comes of them.
  void FindOffsets(int32_t begin, int32_t keys) {
    const KvLayerView& kv = job_.kv;
    const int64_t slot_elements = int64_t{kv.kv_heads} * kv.head_dim;
    int32_t page = begin / kv.page_size;
    int32_t slot = begin % kv.page_size;
    for (int32_t key = 0; key < keys; ++key) {
      const int64_t at =
          int64_t{job_.tile.page_ids[page]} * kv.page_size + slot;
      offsets_[key] = at * slot_elements + int64_t{job_.kv_head} * kv.head_dim;
      if (++slot == kv.page_size) {
        slot = 0;
        ++page;
      }
    }
    for (int32_t key = keys; key < RoundUp(keys, kDirectKeys); ++key) {
      offsets_[key] = offsets_[keys - 1];
    }
  }

  const hwy::float16_t* Keys() const {
    return static_cast<const hwy::float16_t*>(job_.kv.k);
  }
  const hwy::float16_t* Values() const {
    return static_cast<const hwy::float16_t*>(job_.kv.v);
  }

  void LoadBlock(int32_t keys) {
    const D d;
    for (int32_t key = 0; key < keys; key += kGroupKeys) {
      ArrangeKeys(Keys(), offsets_ + key, job_.head_dim,
                  s_.keys + key * s_.dims);
    }
    for (int32_t key = 0; key < keys; ++key) {
      const hwy::float16_t* value = Values() + offsets_[key];
      for (int64_t i = 0; i < job_.head_dim; i += kLanes) {
        hn::StoreU(LoadHalves(value + i, job_.head_dim - i), d,
                   s_.values + key * s_.dims + i);
      }
    }
  }

  void BlockOfOneRow(int32_t keys) {
    const PagedBlock block{Keys(), Values(), offsets_, job_.head_dim};
    int64_t a = 0;
    for (; a + kDirectQueries <= queries_; a += kDirectQueries) {
      DirectBlock<kDirectQueries>(s_, block, a, keys);
    }
    switch (queries_ - a) {
      case 3:
        return DirectBlock<3>(s_, block, a, keys);
      case 2:
        return DirectBlock<2>(s_, block, a, keys);
      case 1:
        return DirectBlock<1>(s_, block, a, keys);
    }
  }

  void Block(int32_t begin, int32_t keys) {
    // The first query that sees any of the block: those before end earlier.
    int64_t first = 0;
    while (Seen(first, begin) <= 0) first += job_.heads;
    ScoreBlock(s_, first, queries_, keys);
    for (int64_t a = first; a < queries_; ++a) {
      UpdateSoftmax(s_, a, Seen(a, begin));
    }
    int64_t a = first;
    for (; a + 2 <= queries_; a += 2) {
      const int64_t seen = Seen(a, begin), next = Seen(a + 1, begin);
      AddValuesAllDims<2>(s_, a, 0, seen);
      if (next > seen) AddValuesAllDims<1>(s_, a + 1, seen, next);
    }
    if (a < queries_) AddValuesAllDims<1>(s_, a, 0, Seen(a, begin));
  }

  void Finish() const {
    const D d;
    for (int64_t query = 0; query < queries_; ++query) {
      const V totals = hn::LoadU(d, s_.totals + query * kLanes);
      const float inverse = 1.0f / hn::GetLane(hn::SumOfLanes(d, totals));
      const float* sums = s_.sums + query * s_.dims;
      float* out = job_.out +
                   (job_.tile.first_row + Row(query)) * job_.out_stride +
                   Head(query) * job_.head_dim;
      for (int64_t i = 0; i < job_.head_dim; ++i) out[i] = sums[i] * inverse;
    }
  }

  const AttentionJob& job_;
  const int64_t queries_;
  const Scratch s_;
  int64_t offsets_[kKeyBlock];
};

void RunAttentionImpl(const AttentionJob& job, float* scratch) {
  Walk(job, scratch).Run();
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace nibble::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::kernels::cpu {

HWY_EXPORT(RunAttentionImpl);

int64_t AttentionScratch(int32_t head_dim, int32_t queries) {
  constexpr int64_t kMostLanes = 16;
  const int64_t dims = RoundUp<int64_t>(head_dim, kMostLanes);
  return 2 * kKeyBlock * dims +
         queries * (4 * dims + kKeyBlock + dims + kMostLanes + 1);
}

void RunAttention(const AttentionJob& job, float* scratch) {
  HWY_DYNAMIC_DISPATCH(RunAttentionImpl)(job, scratch);
}

}  // namespace nibble::kernels::cpu
#endif
