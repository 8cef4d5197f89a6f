// The helping warps of the W4A16 kernel for many rows: they bring x and weights
// to shared memory.
#pragma once

#include "kernels/cuda/linear/w4_decode.cuh"
#include "kernels/cuda/linear/w4a16_mid_walk.cuh"

namespace nibble::kernels::cuda {

// One lane: brings x and the sums of its groups.
template <typename F, typename T>
__device__ __forceinline__ void LoadX(const MidParams& p, char* shared,
                                      const CUtensorMap* x_map,
                                      const MidBarriers<T>& barriers) {
  constexpr int kColumns = T::kColumns;
  constexpr int kChunks = StageK(kColumns) / kChunkK;
  constexpr int kSumsBytes = F::kGroupsPerBlock * SumsPitch(kColumns) * 4;
  const uint32_t at = SharedAddress(shared);
  const int sum_slots = SumSlots(kColumns, p.x_stages);
  RingCursor x;
  int sum_slot = 0;
#pragma unroll 1
  for (int work = blockIdx.x; work < p.work; work += gridDim.x) {
    const MidItem item(p, work);
    const int column0 = item.column * kColumns;
#pragma unroll 1
    for (int block = item.begin; block < item.end; ++block) {
#pragma unroll 1
      for (int i = 0; i < BlockStages(kColumns); ++i) {
        // The parity before the first phase counts as ended.
        BarrierWait(barriers.XEmpty(x.stage), x.parity ^ 1);
        const uint32_t full = barriers.XFull(x.stage);
        const bool sums = kNeedsSums<F> && i == 0;
        BarrierArriveExpect(full,
                            StageBytes(kColumns) + (sums ? kSumsBytes : 0));
        const int k0 = block * kBlockK + i * StageK(kColumns);
        const uint32_t to = at + x.stage * StageBytes(kColumns);
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          TensorCopy(to + chunk * kColumns * 128, x_map, k0 + chunk * kChunkK,
                     column0, full);
        }
        if (sums) {
          const int64_t of = int64_t{item.column} * p.blocks_k + block;
          BulkCopy(at + p.sums_at + sum_slot * kSumsBytes,
                   p.sums + of * (kSumsBytes / 4), kSumsBytes, full);
          if (++sum_slot == sum_slots) sum_slot = 0;
        }
        x.Next(p.x_stages);
      }
    }
  }
}

// A lane for each warp that computes: brings the warp's blocks.
template <typename F, typename T>
__device__ __forceinline__ void LoadWeights(const MidParams& p, char* shared,
                                            const MidBarriers<T>& barriers,
                                            int lane) {
  const int warpgroup = lane / 4, warp = lane % 4;
  const uint32_t ring = SharedAddress(shared) + p.ring_at +
                        (warpgroup * T::kDepth * 4 + warp) * F::kBlockBytes;
  RingCursor w;
#pragma unroll 1
  for (int work = blockIdx.x; work < p.work; work += gridDim.x) {
    const MidItem item(p, work);
    // Beyond the last row of W the last tile is read again.
    const int tile = min(item.row * kMidWarps + lane, p.tiles - 1);
    const char* from =
        p.blocks + (int64_t{tile} * p.blocks_k + item.begin) * F::kBlockBytes;
#pragma unroll 1
    for (int block = item.begin; block < item.end; ++block) {
      BarrierWait(barriers.WEmpty(warpgroup, w.stage), w.parity ^ 1);
      const uint32_t full = barriers.WFull(warpgroup, w.stage);
      BarrierArriveExpect(full, F::kBlockBytes);
      BulkCopy(ring + w.stage * 4 * F::kBlockBytes, from, F::kBlockBytes, full);
      from += F::kBlockBytes;
      w.Next(T::kDepth);
    }
  }
}

}  // namespace nibble::kernels::cuda
