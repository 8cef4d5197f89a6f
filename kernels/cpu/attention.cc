#include "kernels/cpu/attention.h"

#include "kernels/cpu/highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cc"
#include <algorithm>

#include "base/checked_math.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/attention_direct-inl.h"
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
        row_queries_(int64_t{job.kv_heads} * job.group),
        queries_(job.tile.rows * row_queries_),
        s_(Divide(scratch, job.head_dim, queries_)) {}

  // All blocks of all queries.
  void Run() {
    const KeySums whole = s_.now;
    const KeySums later = DivideSums(whole.best + queries_, s_.dims, queries_);
    Start(0);
    const int32_t last = BlocksAt(job_.tile.position + job_.tile.rows - 1);
    for (int32_t block = 0; block < last; ++block) {
      s_.now = block == 0 ? whole : later;
      RunBlock(block, last);
      if (block == 0) continue;
      for (int64_t a = FirstSeeing(block); a < queries_; ++a) {
        MergeKeys(whole, later, s_.dims, a);
      }
    }
    Finish(whole);
  }

  void RunSome(int32_t first, int32_t last, const BlockSums& to) {
    Start(first);
    for (int32_t block = first; block < last; ++block) {
      s_.now = DivideSums(to.sums + block * to.stride, s_.dims, to.heads);
      s_.now.sums += FirstHead() * s_.dims;
      s_.now.totals += FirstHead() * kLanes;
      s_.now.best += FirstHead();
      RunBlock(block, last);
    }
  }

  void Merge(const BlockSums& from) {
    const KeySums whole = DivideSums(from.sums, s_.dims, from.heads);
    const int32_t last = BlocksAt(job_.tile.position);
    for (int32_t block = 1; block < last; ++block) {
      const KeySums later =
          DivideSums(from.sums + block * from.stride, s_.dims, from.heads);
      for (int64_t a = 0; a < queries_; ++a) {
        MergeKeys(whole, later, s_.dims, a);
      }
    }
    Finish(whole);
  }

 private:
  int64_t Row(int64_t query) const { return query / row_queries_; }
  int64_t FirstHead() const { return int64_t{job_.first_kv_head} * job_.group; }
  int64_t Head(int64_t query) const {
    return FirstHead() + query % row_queries_;
  }
  // Keys of a block that a query sees; may be 0 or less.
  int64_t Seen(int64_t query, int32_t block) const {
    return std::min<int64_t>(
        kKeyBlock, job_.tile.position + Row(query) + 1 - block * kKeyBlock);
  }
  // The first query that sees the block: those after it do too.
  int64_t FirstSeeing(int32_t block) const {
    return std::max(block * kKeyBlock - job_.tile.position, 0) * row_queries_;
  }
  // Keys of a block that the last row sees.
  int32_t KeysOf(int32_t block) const {
    return static_cast<int32_t>(Seen(queries_ - 1, block));
  }
  const hwy::float16_t* Keys() const {
    return static_cast<const hwy::float16_t*>(job_.kv.k);
  }
  const hwy::float16_t* Values() const {
    return static_cast<const hwy::float16_t*>(job_.kv.v);
  }
  // Some rows that will be wanted: all heads of the job.
  Ahead RowsAhead(const hwy::float16_t* pages, const int64_t* offsets,
                  int64_t rows) const {
    return {pages, offsets, rows, int64_t{job_.kv_heads} * job_.head_dim};
  }

  void Start(int32_t block) {
    FindOffsets(block, offsets_);
    if (job_.tile.rows == 1) {
      RowsAhead(Keys(), offsets_, KeysOf(block)).FetchAll();
    }
    for (int64_t query = 0; query < queries_; ++query) {
      const float* q = job_.q.RowF32(job_.tile.first_row + Row(query)) +
                       Head(query) * job_.head_dim;
      ArrangeQuery(q, job_.scale, job_.head_dim, s_.dims,
                   s_.q + query * kGroupKeys * s_.dims);
    }
  }

  // Where the keys of a block lie. Missing keys are the last one again; nobody
  // reads what comes of them.
  void FindOffsets(int32_t block, int64_t* offsets) const {
    const KvLayerView& kv = job_.kv;
    const int64_t slot_elements = int64_t{kv.kv_heads} * kv.head_dim;
    const int32_t keys = KeysOf(block);
    int32_t page = block * kKeyBlock / kv.page_size;
    int32_t slot = block * kKeyBlock % kv.page_size;
    for (int32_t key = 0; key < keys; ++key) {
      const int64_t at =
          int64_t{job_.tile.page_ids[page]} * kv.page_size + slot;
      offsets[key] =
          at * slot_elements + int64_t{job_.first_kv_head} * kv.head_dim;
      if (++slot == kv.page_size) {
        slot = 0;
        ++page;
      }
    }
    std::fill(offsets + keys, offsets + kKeyBlock, offsets[keys - 1]);
  }

  // Writes s_.now; offsets_ are those of the block, and then of the next.
  void RunBlock(int32_t block, int32_t last) {
    std::fill_n(s_.now.sums, queries_ * s_.dims, 0.0f);
    const bool more = block + 1 < last;
    int64_t next_offsets[kKeyBlock];
    if (more) FindOffsets(block + 1, next_offsets);
    if (job_.tile.rows == 1) {
      BlockOfOneRow(KeysOf(block), RowsAhead(Keys(), next_offsets,
                                             more ? KeysOf(block + 1) : 0));
    } else {
      LoadBlock(KeysOf(block));
      Block(block);
    }
    if (more) std::copy_n(next_offsets, kKeyBlock, offsets_);
  }

  // Asks for the block's values while it scores its keys, for the keys of the
  // next block (`next`) while it adds the values.
  void BlockOfOneRow(int32_t keys, Ahead next) {
    Ahead values = RowsAhead(Values(), offsets_, keys);
    for (int32_t head = 0; head < job_.kv_heads; ++head) {
      ForDirectQueries(job_.group, [&](int64_t first, auto count) {
        ScoreDirect<count()>(s_, BlockOf(head), head * job_.group + first, keys,
                             values);
      });
    }
    values.FetchAll();
    for (int64_t a = 0; a < queries_; ++a) Softmax(s_, a, keys);
    for (int32_t head = 0; head < job_.kv_heads; ++head) {
      ForDirectQueries(job_.group, [&](int64_t first, auto count) {
        AddDirectAllDims<count()>(s_, BlockOf(head), head * job_.group + first,
                                  keys, next);
      });
    }
    next.FetchAll();
  }

  PagedBlock BlockOf(int32_t head) const {
    const int64_t at = int64_t{head} * job_.head_dim;
    return {Keys() + at, Values() + at, offsets_, job_.head_dim};
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

  void Block(int32_t block) {
    const int64_t first = FirstSeeing(block);
    ScoreBlock(s_, first, queries_, KeysOf(block));
    for (int64_t a = first; a < queries_; ++a) Softmax(s_, a, Seen(a, block));
    ForQueries(first, queries_, [&](int64_t a, auto count) {
      const int64_t seen = Seen(a, block);
      AddValuesAllDims<count()>(s_, a, 0, seen);
      // Later rows see more.
      for (int64_t b = a + 1; b < a + count(); ++b) {
        if (Seen(b, block) > seen) {
          AddValuesAllDims<1>(s_, b, seen, Seen(b, block));
        }
      }
    });
  }

  void Finish(const KeySums& whole) const {
    for (int64_t query = 0; query < queries_; ++query) {
      float* out = job_.out +
                   (job_.tile.first_row + Row(query)) * job_.out_stride +
                   Head(query) * job_.head_dim;
      FinishQuery(whole, s_.dims, query, job_.head_dim, out);
    }
  }

  const AttentionJob& job_;
  const int64_t row_queries_;  // of one row
  const int64_t queries_;
  Scratch s_;
  int64_t offsets_[kKeyBlock];  // of the block at work
};

void RunAttentionImpl(const AttentionJob& job, float* scratch) {
  Walk(job, scratch).Run();
}

void RunAttentionBlocksImpl(const AttentionJob& job, int32_t first,
                            int32_t last, float* scratch, const BlockSums& to) {
  Walk(job, scratch).RunSome(first, last, to);
}

void MergeAttentionBlocksImpl(const AttentionJob& job, const BlockSums& from) {
  Walk(job, from.sums).Merge(from);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace nibble::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::kernels::cpu {

HWY_EXPORT(RunAttentionImpl);
HWY_EXPORT(RunAttentionBlocksImpl);
HWY_EXPORT(MergeAttentionBlocksImpl);

namespace {
constexpr int64_t kMostLanes = 16;
}  // namespace

int64_t AttentionScratch(int32_t head_dim, int32_t queries) {
  const int64_t dims = RoundUp<int64_t>(head_dim, kMostLanes);
  return 2 * kKeyBlock * dims + queries * (4 * dims + kKeyBlock) +
         2 * AttentionSums(head_dim, queries);
}

int64_t AttentionSums(int32_t head_dim, int32_t queries) {
  const int64_t dims = RoundUp<int64_t>(head_dim, kMostLanes);
  return queries * (dims + kMostLanes + 1);
}

void RunAttention(const AttentionJob& job, float* scratch) {
  HWY_DYNAMIC_DISPATCH(RunAttentionImpl)(job, scratch);
}

void RunAttentionBlocks(const AttentionJob& job, int32_t first, int32_t last,
                        float* scratch, const BlockSums& to) {
  HWY_DYNAMIC_DISPATCH(RunAttentionBlocksImpl)(job, first, last, scratch, to);
}

void MergeAttentionBlocks(const AttentionJob& job, const BlockSums& from) {
  HWY_DYNAMIC_DISPATCH(MergeAttentionBlocksImpl)(job, from);
}

}  // namespace nibble::kernels::cpu
#endif
