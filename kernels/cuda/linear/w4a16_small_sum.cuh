// The end of the W4A16 kernel for few rows: partial sums of slices meet in
// shared memory and become results.
#pragma once

#include "kernels/cuda/linear/cluster.cuh"
#include "kernels/cuda/linear/mma.cuh"
#include "kernels/cuda/linear/tma.cuh"
#include "kernels/cuda/linear/w4_store.cuh"
#include "kernels/cuda/linear/w4a16_small.h"

namespace nibble::kernels::cuda {

// The tiles of a team, and which of its CTAs adds up which of them: runs of
// tiles take turns. Tiles are counted within the team. kCluster: a team is a
// cluster, not a CTA.
template <bool kCluster>
struct Team {
  int log2 = 0, team, teams, rank = 0;

  __device__ __forceinline__ explicit Team(const SmallParams& p)
      : team(blockIdx.x), teams(p.ctas) {
    if constexpr (kCluster) {
      log2 = p.cluster_log2;
      rank = team & ((1 << log2) - 1);
      team >>= log2;
      teams >>= log2;
    }
  }

  __device__ __forceinline__ int OwnTiles(const SmallParams& p) const {
    return (p.runs_each + (team < p.runs_extra ? 1 : 0)) << p.run_log2;
  }
  // The team's runs are every teams-th.
  __device__ __forceinline__ int TileOf(const SmallParams& p, int i) const {
    const int in_run = i & ((1 << p.run_log2) - 1);
    return ((team + (i >> p.run_log2) * teams) << p.run_log2) + in_run;
  }
  // Of an epoch of `count` tiles, the runs that this CTA adds up.
  __device__ __forceinline__ int RunsToAdd(const SmallParams& p,
                                           int count) const {
    return ((count >> p.run_log2) + (1 << log2) - 1 - rank) >> log2;
  }
};

// Has the barrier that counts a team's bytes wait for those of an epoch of
// `count` tiles; one thread.
__device__ __forceinline__ void ExpectPartials(const SmallParams& p,
                                               char* shared,
                                               const Team<true>& team,
                                               int count) {
  const int tiles = team.RunsToAdd(p, count) << p.run_log2;
  BarrierArriveExpect(SharedAddress(shared + p.done_at),
                      tiles * p.partial_tile_bytes);
}

// A slice's partial sums of a tile are [16 features][pitch of rows], floats.
__device__ __forceinline__ int PartialFloats(const SmallParams& p) {
  return kTileRows << p.rows_log2;
}

// Where a warp puts its partial sums: the place of the lane's first in that of
// tile 0, an offset in shared memory.
__device__ __forceinline__ int PartialAt(const SmallParams& p, int slice) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  return p.partial_at +
         (slice * PartialFloats(p) + (g << p.rows_log2) + 2 * t) * 4;
}

// Writes a warp's y, [NT][4] as mma leaves it, to where its tile is added up.
// i: the tile's number in the epoch; at: PartialAt.
template <bool kCluster, int NT>
__device__ __forceinline__ void StorePartial(const SmallParams& p,
                                             const Team<kCluster>& team,
                                             char* shared, int i, int at,
                                             const float (&y)[NT][4]) {
  const int t2 = threadIdx.x % 4 * 2;
  const int run = i >> p.run_log2;
  const int local =
      (run >> team.log2 << p.run_log2) + (i & ((1 << p.run_log2) - 1));
  char* const to = shared + at + local * p.partial_tile_bytes;
  uint32_t in_owner = 0, done = 0;  // of a cluster
  if constexpr (kCluster) {
    const uint32_t owner = run & ((1 << team.log2) - 1);
    in_owner = InCta(SharedAddress(to), owner);
    done = InCta(SharedAddress(shared + p.done_at), owner);
  }
  const int high = 8 * 4 << p.rows_log2;  // from feature g to g + 8
  if (p.rows_log2 == 0) {
    if (t2 != 0) return;
    if constexpr (kCluster) {
      StoreAsync4(in_owner, y[0][0], done);
      StoreAsync4(in_owner + high, y[0][2], done);
    } else {
      *reinterpret_cast<float*>(to) = y[0][0];
      *reinterpret_cast<float*>(to + high) = y[0][2];
    }
    return;
  }
#pragma unroll
  for (int nt = 0; nt < NT; ++nt) {
    if (nt * 8 + t2 >= 1 << p.rows_log2) break;
    const int skip = nt * 32;
    if constexpr (kCluster) {
      StoreAsync8(in_owner + skip, y[nt][0], y[nt][1], done);
      StoreAsync8(in_owner + skip + high, y[nt][2], y[nt][3], done);
    } else {
      *reinterpret_cast<float2*>(to + skip) = make_float2(y[nt][0], y[nt][1]);
      *reinterpret_cast<float2*>(to + skip + high) =
          make_float2(y[nt][2], y[nt][3]);
    }
  }
}

// Two neighbouring partial sums of a tile, and the outputs that a thread makes
// of them when an epoch of `count` tiles from `begin` on is done: of two rows
// of y, or, where a pass has one row, of two features.
struct ReduceItem {
  const float* from;
  int64_t at;  // of the first in y
  int column;
  bool there, second_there;

  ReduceItem() = default;
  // Rows of y: those of the pass from row0 on, of which those before pass_row
  // are another pass's.
  template <bool kCluster>
  __device__ __forceinline__ ReduceItem(const SmallParams& p,
                                        const Team<kCluster>& team,
                                        const float* partial, int begin,
                                        int count, int row0, int pass_row,
                                        int index) {
    const int log2 = p.rows_log2 + kTileRowsLog2;
    const int run = 2 * index >> log2;
    const int in_tile = 2 * index & ((1 << log2) - 1);
    const int row = row0 + (in_tile & ((1 << p.rows_log2) - 1));
    const int tile = team.TileOf(
        p, begin + (((run << team.log2) + team.rank) << p.run_log2));
    column = (tile >> p.run_log2) * kTileRows + (in_tile >> p.rows_log2);
    at = row * p.out.ldy + column;
    from = partial + (run << p.run_log2) * (p.partial_tile_bytes / 4) + in_tile;
    const bool ours = run < team.RunsToAdd(p, count) && column < p.out.n_out;
    there = ours && row >= pass_row && row < row0 + p.rows;
    second_there = p.rows_log2 == 0
                       ? there && column + 1 < p.out.n_out
                       : ours && row + 1 >= pass_row && row + 1 < row0 + p.rows;
  }
};

// The sums of two outputs' slices in the order of w4_layout.h: by quarters. Of
// kMaxSlices slices kBatch quarters are loaded at once.
template <int kBatch>
__device__ __forceinline__ float2 AddSlices(const SmallParams& p,
                                            const float* from) {
  const int pitch = PartialFloats(p);
  const auto load = [&](int s) {
    return *reinterpret_cast<const float2*>(from + s * pitch);
  };
  const auto add = [](float2 a, float2 b) {
    return make_float2(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y));
  };
  float2 total = {};
  if (p.slices == kMaxSlices) {
    constexpr int kQuarter = QuarterSlices(kMaxSlices);
#pragma unroll
    for (int first = 0; first < kSliceSharers; first += kBatch) {
      float2 v[kBatch][kQuarter];
#pragma unroll
      for (int i = 0; i < kBatch * kQuarter; ++i) {
        v[i / kQuarter][i % kQuarter] = load(first * kQuarter + i);
      }
#pragma unroll
      for (int q = 0; q < kBatch; ++q) {
        float2 sum = v[q][0];
#pragma unroll
        for (int i = 1; i < kQuarter; ++i) sum = add(sum, v[q][i]);
        total = first + q == 0 ? sum : add(total, sum);
      }
    }
  } else {
    const int quarter = QuarterSlices(p.slices);
#pragma unroll 1
    for (int begin = 0; begin < p.slices; begin += quarter) {
      const int end = min(begin + quarter, p.slices);
      float2 sum = load(begin);
#pragma unroll 3
      for (int s = begin + 1; s < end; ++s) sum = add(sum, load(s));
      total = begin == 0 ? sum : add(total, sum);
    }
  }
  return make_float2(__fmul_rn(total.x, p.tensor_scale),
                     __fmul_rn(total.y, p.tensor_scale));
}

// Adds two outputs' slices and stores them.
template <int kBatch>
__device__ __forceinline__ void Reduce(const SmallParams& p,
                                       const ReduceItem& item) {
  if (!item.there && !item.second_there) return;
  float2 v = AddSlices<kBatch>(p, item.from);
  const int64_t second_at = item.at + (p.rows_log2 == 0 ? 1 : p.out.ldy);
  if (p.out.plain) {
    auto* y = static_cast<__nv_bfloat16*>(p.out.y);
    if (item.there) y[item.at] = __float2bfloat16_rn(v.x);
    if (item.second_there) y[second_at] = __float2bfloat16_rn(v.y);
    return;
  }
  if (p.out.epilogue == W4Epilogue::kSiluMul) {
    const float2 up =
        AddSlices<kBatch>(p, item.from + p.partial_tile_bytes / 4);
    v = make_float2(SiluMul(v.x, up.x), SiluMul(v.y, up.y));
  }
  if (item.there) Finish(p.out, item.at, item.column, v.x);
  if (item.second_there) {
    Finish(p.out, second_at, item.column + (p.rows_log2 == 0 ? 1 : 0), v.y);
  }
}

}  // namespace nibble::kernels::cuda
