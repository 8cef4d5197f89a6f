// W4A16 for many rows on Hopper: weights decoded in registers as the A operand
// of wgmma, x as its B operand from shared memory.
//
// A warpgroup computes 64 rows of W times kColumns rows of x ("columns" from
// here on). Its CTA has row_tiles such tiles, and k_parts warpgroups for each,
// to which the slices of k (w4_layout.h) are dealt in turn; a cluster may
// split k over two CTAs in the same way. Work items are walked by a persistent
// grid, and nothing drains between two of them.
//
// Packed weights come as in w4a16_small.cuh: each warp streams the blocks of
// its own 16 rows by cp.async through a ring that only it waits for. x comes
// by tensor copies that a helping warp issues, and that the CTAs of a cluster
// that need the same x share. The chain of a group is in an accumulator; its
// scales are applied while other products run.
//
// Where several warpgroups share a tile its total is in shared memory, to
// which they add their slices in ascending order: each waits until the one
// before has added, which it nearly always has. CTA 0 along k keeps the total;
// the other gives it its slices through its shared memory.
//
// Instructions are what this kernel has least of: at 16 columns a block of 256
// weights a row takes some 250 of a warp, and four warps share a scheduler.
#pragma once

#include "kernels/cuda/linear/w4a16_mid_add.cuh"
#include "kernels/cuda/linear/w4a16_mid_ring.cuh"
#include "kernels/cuda/linear/w4a16_mid_x.cuh"
#include "kernels/cuda/linear/wgmma.cuh"

namespace nibble::kernels::cuda {

// A warpgroup's work, from the first block to the last. `sync` is called once,
// after the copies that need no barrier.
template <typename F, XType X, typename T, typename Sync>
__device__ __forceinline__ void Compute(const MidCta& cta, int warpgroup,
                                        const Sync& sync) {
  const MidParams& p = cta.p;
  constexpr int kColumns = T::kColumns, kTiles = T::kTiles;
  // A unit: steps of one group whose A operands are in registers together.
  // One is decoded while the one before runs. A quarter of the codes, at most.
  constexpr int kGroupSteps = F::group / kStepK;
  constexpr int kMaxSteps = kColumns == 128 ? 2 : 4;
  constexpr int kUnitSteps = kGroupSteps < kMaxSteps ? kGroupSteps : kMaxSteps;
  constexpr int kUnits = kBlockK / kStepK / kUnitSteps;
  constexpr int kGroupUnits = kGroupSteps / kUnitSteps;
  constexpr int kBlockStages = kBlockK / StageK(kColumns);
  constexpr int kStageUnits = kUnits / kBlockStages;
  constexpr int kStageGroups = StageK(kColumns) / F::group;
  constexpr bool kPrepares = !T::kPrepared && (kScalesX<X> || kNeedsSums<F>);
  static_assert(!kPrepares || kBlockStages == 1, "a stage is a block");
  constexpr bool kHeld = T::kTotal == MidTotal::kHeld;
  constexpr bool kFused = T::kTotal == MidTotal::kFused;
  static_assert(!kFused || F::kGroupsPerBlock == 2, "of two groups");
  // Accumulators of two groups, so that one can be added while the next runs,
  // where there are registers for that.
  constexpr int kAccs = kColumns == 128 && !kFused ? 1 : 2;
  // Two warpgroups that run the tensor cores dry take turns: else both would
  // add at the same time. A turn is what follows each other without a wait.
  constexpr bool kTurns = T::kWarpgroups == 2 && (kHeld || kFused);
  constexpr int kTurnUnits = kAccs == 1 ? kGroupUnits : kUnits;
  static_assert(kAccs > 1 || kTurnUnits <= kStageUnits, "a turn is in a stage");

  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int warp = threadIdx.x % kWarpgroupThreads / 32;
  const int row_tile = warpgroup & (cta.RowTiles() - 1);
  const int part = warpgroup >> p.row_tiles_log2;
  using Ring = WeightRing<F, T::kDepth>;
  const uint32_t shared = SharedAddress(cta.shared);
  Ring ring(cta, row_tile, part, warp,
            shared + p.ring_at + (warpgroup * 4 + warp) * Ring::kBytes);
  ring.FillAll();
  sync();

  const auto take_turn = [&] {
    if constexpr (kTurns) {
      BarrierOf(kTurnBarrier + warpgroup, 2 * kWarpgroupThreads);
    }
  };
  const auto give_turn = [&](int to) {
    if constexpr (kTurns) {
      BarrierArriveOf(kTurnBarrier + to, 2 * kWarpgroupThreads);
    }
  };
  if (warpgroup == 1) give_turn(0);

  uint32_t a[2][kUnitSteps][4];
  uint4 quad;  // a quarter of a block's codes
  const auto decode = [&](int unit) {
#pragma unroll
    for (int s = 0; s < kUnitSteps; ++s) {
      const int step = unit * kUnitSteps + s;
      const uint32_t word = step % 4 == 0   ? quad.x
                            : step % 4 == 1 ? quad.y
                            : step % 4 == 2 ? quad.z
                                            : quad.w;
      Decode<F, X>(word, a[unit % 2][s]);
    }
  };
  ring.Wait();
  quad = ring.Codes(0);
  decode(0);

  StageCursor x;
  int sum_slot = 0;
  float acc[kAccs][kTiles][4];
  MidSlices slice(cta, part);
  int dealt = 0;
#pragma unroll 1
  while (!slice.Ended(cta)) {
    const int work = slice.work;
    float held[kHeld || kFused ? kTiles : 1][4];
#pragma unroll
    for (auto& four : held) {
#pragma unroll
      for (float& v : four) v = -0.0f;  // adding to that changes nothing
    }
#pragma unroll 1
    do {
      float y[kTiles][4];
#pragma unroll
      for (auto& four : y) {
#pragma unroll
        for (float& v : four) v = 0;
      }
#pragma unroll 1
      for (int left = slice.Blocks(cta); left > 0; --left) {
        ring.Fill();
        const char* const scales = cta.shared + (ring.Scales() - shared);
        int stage = 0;
        const float* sums[kBlockStages];
        uint64_t operand = 0;
        const auto enter_stage = [&](int i) {
          // Told to be the same for all lanes, it stays in a uniform register.
          stage = __shfl_sync(~0u, part * p.x_stages + x.stage, 0);
          int slot = stage;
          if constexpr (kBlockStages > 1) {
            slot = part * p.x_stages * kBlockStages + sum_slot;
            if (++sum_slot == p.x_stages * kBlockStages) sum_slot = 0;
          }
          sums[i] = reinterpret_cast<const float*>(cta.shared + p.sums_at) +
                    slot * (kStageGroups * SumsPitch(kColumns)) +
                    t * (SumsPitch(kColumns) / 4);
          operand = SwizzledOperand(shared + stage * StageBytes(kColumns));
          BarrierWait(kPrepares ? cta.Ready(stage) : cta.Full(stage), x.parity);
          x.Next(p.x_stages);
        };
        const auto leave_stage = [&](int left_stage) {
          __syncwarp();
          if (p.multicast_log2 == 0) {
            if (lane == 0) BarrierArrive(cta.Empty(left_stage));
          } else if (lane < cta.Multicast()) {
            BarrierArriveInCluster(
                InCta(cta.Empty(left_stage),
                      (cta.rank_k << p.multicast_log2) + lane));
          }
        };
        const auto sums_of = [&](int group, int i) {
          float4 s = {};
          if constexpr (kNeedsSums<F>) {
            s = *reinterpret_cast<const float4*>(
                sums[group / kStageGroups] +
                group % kStageGroups * SumsPitch(kColumns) + i * 2);
          }
          return s;
        };
        const auto add_group = [&](int group) {
          if constexpr (kFused) return;
          const GroupScale scale = BlockScales<F, X>(scales, g).At(group);
          HoldAccumulators(acc[group % kAccs]);
#pragma unroll
          for (int i = 0; i < kTiles; i += 2) {
            const float4 s = sums_of(group, i);
            AddGroup<F, X>(scale, acc[group % kAccs][i], make_float2(s.x, s.y),
                           y[i]);
            AddGroup<F, X>(scale, acc[group % kAccs][i + 1],
                           make_float2(s.z, s.w), y[i + 1]);
          }
        };
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
          const int last_stage = stage;
          if (u % kStageUnits == 0) enter_stage(u / kStageUnits);
          if (u % kTurnUnits == 0) take_turn();
          const int group = u / kGroupUnits;
          // Made before the fence, not between products.
#pragma unroll
          for (int s = 0; s < kUnitSteps; ++s) HoldOperand(a[u % 2][s]);
          if (u % kGroupUnits == 0) HoldAccumulators(acc[group % kAccs]);
          WgmmaFence();
#pragma unroll
          for (int s = 0; s < kUnitSteps; ++s) {
            const int step = (u * kUnitSteps + s) % (StageK(kColumns) / kStepK);
            Wgmma<X>(acc[group % kAccs], a[u % 2][s],
                     operand + step / 4 * (kColumns * 128 >> 4) +
                         step % 4 * kDescriptorStep,
                     u % kGroupUnits + s > 0);
          }
          WgmmaCommit();
          if ((u + 1) % kTurnUnits == 0) give_turn(1 - warpgroup);
          // The next unit's codes, be they of the next block.
          if (u + 1 == kUnits) {
            ring.Turn();
            ring.Wait();
            quad = ring.Codes(0);
          } else if ((u + 1) * kUnitSteps % 4 == 0) {
            quad = ring.Codes((u + 1) * kUnitSteps / 4);
          }
          // A group of several units is added under the second after it,
          if (kAccs > 1 && kGroupUnits > 1 && u >= kGroupUnits + 1 &&
              (u - 1) % kGroupUnits == 0) {
            add_group(group - 1);
          }
          if (u > 0) WgmmaWait<1>();
          if (kBlockStages > 1 && u == kStageUnits) leave_stage(last_stage);
          decode((u + 1) % kUnits);
          // one of a single unit under the first, and a group whose
          // accumulators the next one needs at once.
          if (kAccs > 1 && kGroupUnits == 1 && u > 0) add_group(u - 1);
          if (kAccs == 1 && (u + 1) % kGroupUnits == 0 && u + 1 < kUnits) {
            WgmmaWait<0>();
            add_group(group);
          }
        }
        WgmmaWait<0>();
        if (kBlockStages > 1) leave_stage(stage);
        if constexpr (kFused) {
          const BlockScales<F, X> both(scales, g);
          const GroupScale scale[2] = {both.At(0), both.At(1)};
          HoldAccumulators(acc[0]);
          HoldAccumulators(acc[1]);
#pragma unroll
          for (int i = 0; i < kTiles; i += 2) {
            float sum[2][4] = {};
#pragma unroll
            for (int group = 0; group < 2; ++group) {
              const float4 s = sums_of(group, i);
              AddGroup<F, X>(scale[group], acc[group][i], make_float2(s.x, s.y),
                             sum[0]);
              AddGroup<F, X>(scale[group], acc[group][i + 1],
                             make_float2(s.z, s.w), sum[1]);
            }
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              held[i][e] = __fadd_rn(held[i][e], sum[0][e]);
              held[i + 1][e] = __fadd_rn(held[i + 1][e], sum[1][e]);
            }
          }
        } else {
          add_group(F::kGroupsPerBlock - 1);
        }
        if (kBlockStages == 1) {
          leave_stage(stage);
        } else {
          __syncwarp();  // scales were read: their stage is filled next
        }
      }
      if constexpr (T::kTotal == MidTotal::kShared) {
        AddSlice<T>(cta, warpgroup, slice, dealt, y);
      } else if constexpr (kHeld) {
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            held[i][e] = __fadd_rn(held[i][e], y[i][e]);
          }
        }
      }
      ++dealt;
    } while (!slice.Next(cta));
    if constexpr (kHeld || kFused) {
      const auto at = cta.TileOf(work, row_tile);
      StoreTile<kColumns>(p, held,
                          reinterpret_cast<float*>(cta.shared + p.total_at) +
                              row_tile * (kColumns * kTotalPitch),
                          at.column * kColumns, at.row * kWarpgroupRows,
                          threadIdx.x % kWarpgroupThreads,
                          kWarpgroupBarrier + warpgroup);
    }
  }
}

template <typename F, XType X, typename T>
__global__ void __launch_bounds__(kMidThreads<T::kWarpgroups>, 1)
    W4a16Mid(const __grid_constant__ CUtensorMap x_map,
             const __grid_constant__ MidParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char shared[];
  constexpr int kThreads = kMidThreads<T::kWarpgroups>;
  const MidCta cta(p, shared);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = threadIdx.x % 32;
  const auto sync = [&] {
    if (cta.InCluster()) {
      ClusterArrive();
      ClusterWait();
    } else {
      BarrierOf(0, kThreads);
    }
  };
  if (warp < T::kWarpgroups * 4) {
    TakeRegisters<T::kComputeRegisters>();
    Compute<F, X, T>(cta, warp / 4, sync);
  } else {
    GiveRegisters<T::kHelpRegisters>();
    const int helper = warp - T::kWarpgroups * 4;
    if (helper == 0) {
      PrefetchTensorMap(&x_map);
      if (lane == 0) cta.InitStageBarriers();
      __syncwarp();
      if (cta.InCluster()) {
        sync();
      } else {
        BarrierArriveOf(0, kThreads);
      }
      WaitForDependency();
      LetDependentsStart();
      LoadX<F, T::kColumns, T::kPrepared>(cta, &x_map, lane);
    } else {
      if (helper == 1 && lane == 0) {
        cta.InitOtherBarriers(kHelpers - 1, T::kFragmentBytes / 4);
      }
      __syncwarp();
      sync();
      if constexpr (!T::kPrepared && (kScalesX<X> || kNeedsSums<F>)) {
        PrepareX<F, X, T::kColumns>(cta, helper - 1, kHelpers - 1, lane);
      }
    }
  }
  // Nobody leaves while others of the cluster may still write to it.
  if (cta.InCluster()) {
    __syncwarp();
    ClusterArrive();
    ClusterWait();
  }
#endif
}

}  // namespace nibble::kernels::cuda
