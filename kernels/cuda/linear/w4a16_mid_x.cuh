// The helping warps of the W4A16 kernel for many rows: one brings x to shared
// memory, the others prepare it for the products where no kernel ahead has.
#pragma once

#include "kernels/cuda/linear/w4_decode.cuh"
#include "kernels/cuda/linear/w4a16_mid_walk.cuh"

namespace nibble::kernels::cuda {

// A stage of the ring of one part of k: where a warp that walks it stands.
struct StageCursor {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Next(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// One warp. Lane i loads part i of k; a lane whose ring is full does not hold
// up the others, since parts may wait for each other.
template <typename F, int kColumns, bool kPrepared>
__device__ __forceinline__ void LoadX(const MidCta& cta,
                                      const CUtensorMap* x_map, int lane) {
  const MidParams& p = cta.p;
  constexpr int kChunks = StageK(kColumns) / kChunkK;
  constexpr int kBlockStages = kBlockK / StageK(kColumns);
  constexpr int kStageGroups = StageK(kColumns) / F::group;
  constexpr bool kSums = kPrepared && kNeedsSums<F>;
  constexpr int kSumsBytes = kStageGroups * SumsPitch(kColumns) * 4;
  const auto mask = static_cast<uint16_t>(((1u << cta.Multicast()) - 1)
                                          << (cta.rank_k << p.multicast_log2));
  MidBlocks walk(cta, lane);
  bool active = lane < cta.KParts() && !walk.Ended(cta);
  StageCursor cursor;
  int sum_stage = 0, stage_of_block = 0;
  while (__any_sync(~0u, active)) {
    if (!active) continue;
    const int stage = lane * p.x_stages + cursor.stage;
    // The parity before the first phase counts as ended.
    if (p.k_parts_log2 == 0) {
      BarrierWait(cta.Empty(stage), cursor.parity ^ 1);
    } else if (!BarrierTest(cta.Empty(stage), cursor.parity ^ 1)) {
      continue;
    }
    const uint32_t full = cta.Full(stage);
    const int column_tile = cta.TileOf(walk.slices.work, 0).column;
    const int column0 = column_tile * kColumns;
    const int k0 = walk.block * kBlockK + stage_of_block * StageK(kColumns);
    const uint32_t to =
        SharedAddress(cta.shared) + stage * StageBytes(kColumns);
    BarrierArriveExpect(full, StageBytes(kColumns) + (kSums ? kSumsBytes : 0));
    if (p.multicast_log2 == 0) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        TensorCopy(to + i * kColumns * 128, x_map, k0 + i * kChunkK, column0,
                   full);
      }
    } else {
      for (int i = cta.rank_m; i < kChunks; i += cta.Multicast()) {
        TensorCopyToMany(to + i * kColumns * 128, x_map, k0 + i * kChunkK,
                         column0, full, mask);
      }
    }
    if constexpr (kSums) {
      // Sums stay longer than x: see Consume.
      const int slot = lane * p.x_stages * kBlockStages + sum_stage;
      const int64_t groups = int64_t{p.blocks_k} * F::kGroupsPerBlock;
      const int64_t group = column_tile * groups + k0 / F::group;
      BulkCopy(SharedAddress(cta.shared) + p.sums_at + slot * kSumsBytes,
               p.sums + group * SumsPitch(kColumns), kSumsBytes, full);
      if (++sum_stage == p.x_stages * kBlockStages) sum_stage = 0;
    }
    cursor.Next(p.x_stages);
    if (++stage_of_block == kBlockStages) {
      stage_of_block = 0;
      walk.Next(cta);
      active = !walk.Ended(cta);
    }
  }
}

// Where the sums of a thread's two columns of 16 go, `pitch` floats from group
// to group.
struct SumTarget {
  float* low;
  float* high;
  int pitch;
};

// What products want of x: the sums of its groups and, for BF16, kXScale
// (w4_decode.cuh), which `kScale` gives it in place. For 16 columns and half a
// block in shared memory; `x` is the lane's row, lane % 16, of the first chunk.
// As SumBlock of w4a16_small.cuh: a product with ones, in chains of up to 64
// elements; a group of 128 adds two. x is the A operand here, which takes 16
// columns at once and gives the same bits.
template <typename F, XType X, bool kScale>
__device__ __forceinline__ void PrepareHalf(uint32_t x, int chunk_bytes,
                                            int lane, const SumTarget& to) {
  constexpr int kSteps = kBlockK / kStepK / 2;
  constexpr int kChain = F::group < kChunkK ? F::group : kChunkK;
  constexpr int kChains = kBlockK / 2 / kChain;
  uint32_t a[kSteps][4];
  const auto at = [&](int step) {
    const int segment = step % 4 * 2 + lane / 16;
    return x + step / 4 * chunk_bytes + ((segment ^ (lane % 8)) << 4);
  };
#pragma unroll
  for (int step = 0; step < kSteps; ++step) LdMatrix4(a[step], at(step));
  if constexpr (kScale) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (uint32_t& pair : a[step]) pair = ScaleBf16Pair(pair, kXScalePair);
      StMatrix4(at(step), a[step]);
    }
  }
  float sum[kChains][4] = {};
  if constexpr (kNeedsSums<F>) {
    // Chains take turns.
#pragma unroll
    for (int i = 0; i < kChain / kStepK; ++i) {
#pragma unroll
      for (int chain = 0; chain < kChains; ++chain) {
        Mma<X>(sum[chain], a[chain * (kChain / kStepK) + i], Ones<X>(),
               Ones<X>());
      }
    }
  }
  if constexpr (kNeedsSums<F>) {
    if (lane % 4 != 0) return;
    constexpr int kGroupChains = F::group / kChain;
#pragma unroll
    for (int i = 0; i < F::kGroupsPerBlock / 2; ++i) {
      float low = sum[i * kGroupChains][0], high = sum[i * kGroupChains][2];
      if constexpr (kGroupChains == 2) {
        low = __fadd_rn(low, sum[i * 2 + 1][0]);
        high = __fadd_rn(high, sum[i * 2 + 1][2]);
      }
      if constexpr (kScalesX<X>) {
        low *= 1 / kXScale;
        high *= 1 / kXScale;
      }
      to.low[i * to.pitch] = low;
      to.high[i * to.pitch] = high;
    }
  }
}

// Warp `helper` of `helpers`: prepares every stage of x, halves of 16 columns
// dealt in turn. Lane i keeps the place in part i of k; parts are served as
// they arrive.
template <typename F, XType X, int kColumns>
__device__ __forceinline__ void PrepareX(const MidCta& cta, int helper,
                                         int helpers, int lane) {
  const MidParams& p = cta.p;
  static_assert(StageK(kColumns) == kBlockK, "a stage is a block");
  constexpr int kUnits = kColumns / 16 * 2;
  constexpr int kPitch = SumsPitch(kColumns);
  constexpr int kSums = F::kGroupsPerBlock * kPitch;
  MidBlocks walk(cta, lane);
  bool active = lane < cta.KParts() && !walk.Ended(cta);
  StageCursor cursor;
  int turn = lane;
  while (__any_sync(~0u, active)) {
#pragma unroll 1
    for (int part = 0; part < cta.KParts(); ++part) {
      const int stage =
          part * p.x_stages + __shfl_sync(~0u, cursor.stage, part);
      const uint32_t parity = __shfl_sync(~0u, cursor.parity, part);
      if (p.k_parts_log2 == 0) {
        BarrierWait(cta.Full(stage), parity);
      } else {
        const bool ready =
            __shfl_sync(~0u, static_cast<int>(active), part) != 0 &&
            BarrierTest(cta.Full(stage), parity);
        if (!__all_sync(~0u, ready)) continue;
      }
      float* sums =
          reinterpret_cast<float*>(cta.shared + p.sums_at) + stage * kSums;
      const int own = __shfl_sync(~0u, turn, part);
#pragma unroll 1
      for (int i = 0; i < kUnits; ++i) {
        if ((own + i) % helpers != helper) continue;
        const int half = i % 2, column0 = i / 2 * 16;
        float* to = sums + half * (F::kGroupsPerBlock / 2 * kPitch);
        PrepareHalf<F, X, kScalesX<X>>(
            SharedAddress(cta.shared) + stage * StageBytes(kColumns) +
                half * (2 * kColumns * 128) + (column0 + lane % 16) * 128,
            kColumns * 128, lane,
            {to + SumAt(kColumns, column0 + lane / 4),
             to + SumAt(kColumns, column0 + lane / 4 + 8), kPitch});
      }
      // wgmma reads through another proxy than stores write. All helpers
      // arrive, also one with nothing to do: none may fall behind by a round.
      if constexpr (kScalesX<X>) FenceSharedForAsync();
      __syncwarp();
      if (lane == 0) BarrierArrive(cta.Ready(stage));
      if (lane == part) {
        cursor.Next(p.x_stages);
        turn += kUnits;
        walk.Next(cta);
        active = !walk.Ended(cta);
      }
    }
  }
}

}  // namespace nibble::kernels::cuda
