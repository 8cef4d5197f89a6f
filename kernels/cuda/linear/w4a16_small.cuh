// W4A16 for few rows: the kernel that reads weights at the speed of memory.
//
// Persistent teams, a CTA or a cluster of 2, 4 or 8, own every n-th run of
// tiles of W. The CTAs of a team share the slices of k of its tiles
// (w4_layout.h). A CTA's warps stand in a grid: its slices (along threadIdx.x)
// times lanes along tiles (threadIdx.y). A warp walks its slice of its tiles
// with a ring of its own in shared memory, filled by cp.async; nothing but a
// warp's own ring is waited for, so the main loop has no barrier. The CTA's
// part of x is staged in shared memory once, with the sums of its groups.
// The partial sums of up to `epoch` tiles meet in shared memory, in a team in
// that of the CTA whose turn the tile is, and are added in order of slice.
//
// One team serves 8 * NT rows of x (blockIdx.y): it is made for no more. What
// comes before the first load counts in full when L2 is cold, also as
// instructions to fetch: the prologue is kept short.
#pragma once

#include "kernels/cuda/linear/cluster.cuh"
#include "kernels/cuda/linear/mma.cuh"
#include "kernels/cuda/linear/tma.cuh"
#include "kernels/cuda/linear/w4_decode.cuh"
#include "kernels/cuda/linear/w4a16_small.h"
#include "kernels/cuda/linear/w4a16_small_sum.cuh"
#include "kernels/cuda/linear/w4a16_small_x.cuh"

namespace nibble::kernels::cuda {

// Word `step` of a lane's codes of a block.
__device__ __forceinline__ uint32_t Word(const uint4 (&codes)[4], int step) {
  const uint4& quad = codes[step / 4];
  return step % 4 == 0   ? quad.x
         : step % 4 == 1 ? quad.y
         : step % 4 == 2 ? quad.z
                         : quad.w;
}

// F: the W4Format; NT: eights of rows of x in a pass; D: stages of a warp's
// ring. kCluster: a team is a cluster; empty where the architecture has none.
template <typename F, XType X, int NT, int D, XSource kSource, bool kCluster>
__global__ void __launch_bounds__(kSmallMaxThreads, 1)
    W4a16Small(const __grid_constant__ SmallParams p) {
  if constexpr (kCluster && !kHasClusters) return;
  extern __shared__ __align__(128) char shared[];
  constexpr int kBytes = F::kBlockBytes;
  constexpr int kColumns = NT * 8;
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int tile_lane = threadIdx.y;
  const Team<kCluster> team(p);

  // The CTA's slices of k, the warp's among them, and its blocks; where the
  // slices do not divide, the last warp of some CTAs has nothing to do.
  const int slice0 = team.rank * p.slices >> team.log2;
  const int slice = slice0 + static_cast<int>(threadIdx.x / 32);
  const bool idle =
      kCluster && slice >= (team.rank + 1) * p.slices >> team.log2;
  // Where x is held in registers slices are of one block.
  constexpr bool kOneBlock = kSource == XSource::kRegisters;
  const int first = slice * (kOneBlock ? 1 : p.slice_blocks);
  const int to_first = (slice - slice0) * (kOneBlock ? 1 : p.slice_blocks);
  const int blocks =
      idle ? 0 : (kOneBlock ? 1 : min(p.slice_blocks, p.blocks_k - first));
  // The rows of a pass; the last one begins early enough to have as many.
  const int pass_row = blockIdx.y * kColumns;
  const int row0 = min(pass_row, p.last_row);
  StageX<X> stage_x(p, row0, first, blocks);

  // The warp's ring, and its loading end: the next block of the warp's walk.
  // Worked out when x has been asked for, where nothing is asked for before it:
  // it wants parameters that x does not.
  int tiles, own_tiles, lanes, warp;
  char* ring;
  int load_tile = tile_lane, load_block = 0;
  const char* load_from;
  const auto begin_walk = [&] {
    tiles = team.OwnTiles(p);
    own_tiles = idle ? 0 : tiles;
    lanes = p.lanes;
    warp = tile_lane * p.cta_slices + static_cast<int>(threadIdx.x) / 32;
    ring = shared + p.ring_at + warp * (D * kBytes);
    load_from = p.blocks +
                static_cast<uint64_t>(
                    static_cast<uint32_t>(team.TileOf(p, tile_lane))) *
                    p.tile_bytes +
                (slice * p.slice_bytes + lane * 16);
  };
  const auto load = [&](int stage) {
    if (load_tile < own_tiles) {
      const uint32_t to = SharedAddress(ring + stage * kBytes) + lane * 16;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        CopyAsync16(to + i * 512, load_from + i * 512);
      }
      if (lane * 16 < F::kBlockScaleBytes) {
        CopyAsync16(to + kCodeBytes, load_from + kCodeBytes);
      }
      load_from += kBytes;
      if (kOneBlock || ++load_block == blocks) {
        load_block = 0;
        load_from +=
            p.hop_bytes[load_tile & 1] - (kOneBlock ? 1 : blocks) * kBytes;
        load_tile += lanes;
      }
    }
    CommitCopies();
  };
  // A stage asked for before the kernels ahead have ended is only worth while
  // with programmatic dependent launch.
  const bool early = p.dependency == Dependency::kWeightsFirst;
  if (p.dependency != Dependency::kNone) {
    if (early) {
      begin_walk();
      load(0);
    }
    WaitForDependency();
    LetDependentsStart();
  }
  // x is asked for before the weights: it is little and needed first, and
  // would queue behind them. It is taken before the second stage of weights
  // is asked for, since a warp stalls on a load while the SM has as many in
  // flight as it can.
  if constexpr (KeepsX(kSource)) stage_x.Load();
  if (!early) {
    begin_walk();
    load(0);
  }
  float* sums = reinterpret_cast<float*>(shared + p.sums_at) +
                to_first * (F::kGroupsPerBlock * kColumns);
  constexpr bool kMayReuseX = kSource == XSource::kRegisters;
  const bool on_x = kMayReuseX && p.partial_on_x;
  if constexpr (kCluster) {
    if (threadIdx.x + threadIdx.y == 0) {
      BarrierInit(SharedAddress(shared + p.done_at), 1);
      FenceBarrierInit();
      ExpectPartials(p, shared, team, min(p.epoch, tiles));
    }
    __syncwarp();
    if (!on_x) ClusterArriveRelaxed();
  }
  if constexpr (KeepsX(kSource)) {
    // Every warp writes the zeros that it may read.
    *reinterpret_cast<uint4*>(shared + p.zero_at + lane * 16) =
        make_uint4(0, 0, 0, 0);
    stage_x.StoreTo(shared, to_first);
    bool left = stage_x.Any();
#pragma unroll 1
    while (left) {
      left = stage_x.Store();
      if (left) stage_x.Load();
    }
  }
#pragma unroll 1
  for (int i = 1; i < D; ++i) load(i);
  const auto sync_slice = [&] {
    if (lanes == 1) {
      __syncwarp();
    } else {
      BarrierOf(1 + threadIdx.x / 32, lanes * 32);
    }
  };
  sync_slice();
  if (KeepsX(kSource) && p.k % kBlockK != 0) {
    if (tile_lane == 0) ZeroTail(p, shared, first, to_first, blocks);
    sync_slice();
  }
  const XOperand<X, NT, kSource> x_operand(p, shared, row0, first, to_first);
  constexpr bool kSumsAgain = kNeedsSums<F> && kSource == XSource::kNowhere;
  constexpr bool kKeepsSums = kNeedsSums<F> && !kSumsAgain;
  if constexpr (kKeepsSums) {
    // The lanes of a slice share its blocks and eights of rows.
    if constexpr (kOneBlock) {
#pragma unroll
      for (int nt = 0; nt < NT; ++nt) {
        if (!idle && nt % lanes == tile_lane) {
          SumBlock<F, NT>(x_operand, nt, 0, sums);
        }
      }
    } else {
      constexpr XSource kFrom = KeepsX(kSource) ? XSource::kShared : kSource;
#pragma unroll 1
      for (int i = tile_lane; i < blocks * NT; i += lanes) {
        const int b = i / NT, nt = i % NT;
        const XOperand<X, 1, kFrom> eight(p, shared, row0, first, to_first,
                                          nt * 8);
        SumBlock<F, NT>(eight, 0, b,
                        sums + b * (F::kGroupsPerBlock * kColumns) + nt * 8);
      }
    }
    sync_slice();
  }
  // The shared memory of a CTA may be written when the CTA runs, and where x
  // was when that is in registers.
  if constexpr (kCluster) {
    if (on_x) ClusterArriveRelaxed();
    ClusterWait();
  } else if (on_x) {
    __syncthreads();
  }

  // Where x takes most registers, codes are fetched when wanted, and what the
  // end needs is worked out there.
  constexpr bool kSpareRegisters = NT > 1 && kSource == XSource::kRegisters;
  const int threads = p.cta_slices * lanes * 32;
  const float* partial = reinterpret_cast<const float*>(shared + p.partial_at);
  const int partial_at = PartialAt(p, slice);
  int stage = 0;
  uint32_t epoch_parity = 0;
  // Every `epoch` tiles all warps meet.
#pragma unroll 1
  for (int begin = 0; begin < tiles; begin += p.epoch) {
    const int count = min(p.epoch, tiles - begin);
    int index = warp * 32 + lane;
    const auto item_of = [&] {
      return ReduceItem(p, team, partial, begin, count, row0, pass_row, index);
    };
    // Worked out while memory is waited for, so that little is left to do after
    // the last tile.
    ReduceItem item;
    const int items = team.RunsToAdd(p, count) * PartialFloats(p) / 2;
    if (!kSpareRegisters && index < items) item = item_of();
#pragma unroll 1
    for (int i = idle ? count : tile_lane; i < count; i += lanes) {
      float y[NT][4] = {};
#pragma unroll 1
      for (int b = 0; b < (kOneBlock ? 1 : blocks); ++b) {
        WaitCopies<D - 1>();
        __syncwarp();
        const char* block = ring + stage * kBytes;
        const auto release = [&] {  // when all of the block is in registers
          __syncwarp();
          load(stage);
          stage = stage + 1 == D ? 0 : stage + 1;
        };
        uint4 codes[4];
        const auto fetch = [&](int q) {
          codes[q] = LoadShared16(block + q * 512 + lane * 16);
        };
        const BlockScales<F, X> scales(block + kCodeBytes, g);
        if constexpr (!kSpareRegisters) {
#pragma unroll
          for (int q = 0; q < 4; ++q) fetch(q);
          release();
        }
        const float* sum = sums + b * (F::kGroupsPerBlock * kColumns) + 2 * t;
        // Two groups take turns: each is one chain of dependent products.
        constexpr int kSteps = F::group / kStepK;
#pragma unroll
        for (int i = 0; i < F::kGroupsPerBlock; i += 2) {
          float acc[2][NT][4] = {};
          uint32_t xb[2][NT][4];  // x of two steps
          GroupSum<F, X> group_sum[kSumsAgain ? 2 : 1][kSumsAgain ? NT : 1];
#pragma unroll
          for (int s = 0; s < 2 * kSteps; ++s) {
            const int turn = s % 2, step = (i + turn) * kSteps + s / 2;
            if (kSpareRegisters && step % 4 == 0) {
              fetch(step / 4);
              if (step / 4 == 3) release();
            }
            uint32_t a[4];
            Decode<F, X>(Word(codes, step), a);
#pragma unroll
            for (int nt = 0; nt < NT; ++nt) {
              // With groups of one step, both share a load.
              uint32_t(&x)[4] = xb[kSteps == 1 ? 0 : turn][nt];
              if (step % 2 == 0) x_operand.Load(nt, b, step / 2, x);
              Mma<X>(acc[turn][nt], a, x[step % 2 * 2], x[step % 2 * 2 + 1]);
              if constexpr (kSumsAgain) {
                group_sum[turn][nt].Add(s / 2, x[step % 2 * 2],
                                        x[step % 2 * 2 + 1]);
              }
            }
          }
#pragma unroll
          for (int turn = 0; turn < 2; ++turn) {
            const GroupScale scale = scales.At(i + turn);
#pragma unroll
            for (int nt = 0; nt < NT; ++nt) {
              float2 s = {};
              if constexpr (kSumsAgain) s = group_sum[turn][nt].Total();
              if constexpr (kKeepsSums) {
                s = *reinterpret_cast<const float2*>(
                    sum + (i + turn) * kColumns + nt * 8);
              }
              AddGroup<F, X>(scale, acc[turn][nt], s, y[nt]);
            }
          }
        }
      }
      StorePartial(p, team, shared, i, partial_at, y);
    }
    const bool more = begin + p.epoch < tiles;
    if constexpr (kCluster) {
      BarrierWait(SharedAddress(shared + p.done_at), epoch_parity);
      epoch_parity ^= 1;
    } else {
      __syncthreads();
    }
    if (kSpareRegisters && index < items) item = item_of();
#pragma unroll 1
    while (index < items) {
      Reduce<kSpareRegisters ? 1 : kSliceSharers>(p, item);
      index += threads;
      if (index < items) item = item_of();
    }
    if (more) {
      if constexpr (kCluster) {
        // Not before all have seen the last epoch's bytes counted, and before
        // any of the next can come.
        __syncthreads();
        if (threadIdx.x + threadIdx.y == 0) {
          ExpectPartials(p, shared, team,
                         min(p.epoch, tiles - begin - p.epoch));
        }
        __syncwarp();
        ClusterArrive();
        ClusterWait();
      } else {
        __syncthreads();
      }
    }
  }
}

}  // namespace nibble::kernels::cuda
