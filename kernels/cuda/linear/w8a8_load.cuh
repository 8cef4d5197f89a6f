// The warps of the W8A8 kernel that bring x and W to shared memory.
#pragma once

#include "kernels/cuda/linear/w8a8_walk.cuh"

namespace nibble::kernels::cuda {

// As TensorCopy, to the same place of each CTA of the cluster in `ctas`, and
// reports to the same barrier of each.
__device__ __forceinline__ void TensorCopyToAll(uint32_t to,
                                                const CUtensorMap* map, int x,
                                                int y, uint32_t barrier,
                                                uint16_t ctas) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::"
      "bytes.multicast::cluster [%0],[%1,{%2,%3}],[%4],%5;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(ctas)
      : "memory");
}

// One of the lanes of a warp that are here together. ptxas knows that what it
// alone does is the same for the warp, and keeps operands of copies in uniform
// registers; of `lane == 0` it does not.
__device__ __forceinline__ bool ElectLane() {
  uint32_t elected;
  asm volatile(
      "{.reg .pred p;\n"
      "elect.sync _|p,0xffffffff;\n"
      "selp.u32 %0,1,0,p;}"
      : "=r"(elected));
  return elected != 0;
}

// What a warp that loads goes by: every step of every tile of the CTA, and its
// part of what the cluster shares to all of the cluster. By value.
template <typename T>
struct W8Loads {
  const W8Params& p;
  const uint32_t shared;
  const CUtensorMap* map;  // of what it loads
  const W8Barriers<T>& barriers;
  const int rank;

  // Calls load(place, stage, parity, block) for each step as its stage becomes
  // free, with one lane.
  template <typename Load>
  __device__ __forceinline__ void ForEachStep(const Load& load) const {
    W8Cursor<T> cursor;
#pragma unroll 1
    for (int item = W8FirstItem(p); item < p.row_items * p.column_items;
         item += W8ItemStep(p)) {
      const W8Place place = PlaceW8(p, T::kTile, item, rank);
#pragma unroll 1
      for (int block = 0; block < p.k_blocks; ++block) {
        // The parity before the first phase counts as ended.
        BarrierWait(barriers.Empty(cursor.stage), cursor.parity ^ 1);
        if (ElectLane()) load(place, cursor.stage, cursor.parity, block);
        __syncwarp();
        cursor.Next();
      }
    }
  }
  // Rows from `row` on of a step to shared memory, of this CTA or of all.
  __device__ __forceinline__ void Copy(bool to_all, uint32_t to, int block,
                                       int row, uint32_t full) const {
    constexpr int kStep = static_cast<int>(kW8BlockK);
    if (to_all && p.cluster > 1) {
      const auto everyone = static_cast<uint16_t>((1 << p.cluster) - 1);
      TensorCopyToAll(to, map, block * kStep, row, full, everyone);
    } else {
      TensorCopy(to, map, block * kStep, row, full);
    }
  }
  // The bytes of the scales of the tile's rows of x, as far as there are any.
  __device__ __forceinline__ int XScalesBytes(const W8Place& place) const {
    const int there = static_cast<int>(p.x_scales_pitch) - place.row;
    return T::kBlockScales ? 4 * max(0, min(T::kTile.rows, there)) : 0;
  }
  // The bytes of the scales of the tile's rows of W, likewise.
  __device__ __forceinline__ int WScalesBytes(const W8Place& place) const {
    const int there = static_cast<int>(p.w_scales_pitch) - place.column;
    return T::kGroupScales ? 4 * max(0, min(T::kTile.columns, there)) : 0;
  }
};

// One warp: brings W, and says how much a stage waits for, x included. W is no
// other kernel's result: it is asked for before the kernels ahead have ended.
template <typename T>
__device__ __forceinline__ void LoadW(const W8Loads<T>& loads) {
  constexpr bool kSharesW = T::kTile.SharesW();
  constexpr int kStep = static_cast<int>(kW8BlockK);
  const W8Params& p = loads.p;
  const int part = kSharesW ? loads.rank * p.w_box : 0;  // rows
  const int bytes = (kSharesW ? 1 : p.cluster) * p.x_box * kStep + T::kWBytes;
  loads.ForEachStep(
      [&](const W8Place& place, int stage, uint32_t parity, int block) {
        const uint32_t full = loads.barriers.Full(stage);
        const int scales = loads.WScalesBytes(place);
        BarrierArriveExpect(full, bytes + loads.XScalesBytes(place) + scales);
        if (T::kGroupScales && scales > 0) {
          BulkCopy(loads.shared + T::kShared.scales_at +
                       W8ScalesSlot<T>(stage, parity) * T::kTile.columns * 4,
                   p.w_scales + block * p.w_scales_pitch + place.column, scales,
                   full);
        }
        const uint32_t to = loads.shared + stage * T::kShared.stage_bytes +
                            T::kXBytes + part * kStep;
        loads.Copy(kSharesW, to, block, place.column + part, full);
      });
}

// Another one: brings x, once the kernels ahead have ended. A warp of its own,
// so that it does not come behind all of the first stages of W.
template <typename T>
__device__ __forceinline__ void LoadX(const W8Loads<T>& loads) {
  constexpr bool kSharesX = !T::kTile.SharesW();
  constexpr int kStep = static_cast<int>(kW8BlockK);
  const W8Params& p = loads.p;
  const int part = kSharesX ? loads.rank * p.x_box : 0;  // rows
  WaitForDependency();
  loads.ForEachStep([&](const W8Place& place, int stage, uint32_t /*parity*/,
                        int block) {
    const uint32_t full = loads.barriers.Full(stage);
    const uint32_t to =
        loads.shared + stage * T::kShared.stage_bytes + part * kStep;
    loads.Copy(kSharesX, to, block, place.row + part, full);
    const int scales = loads.XScalesBytes(place);
    if (T::kBlockScales && scales > 0) {
      BulkCopy(loads.shared + T::kShared.scales_at + stage * T::kTile.rows * 4,
               p.x_scales + block * p.x_scales_pitch + place.row, scales, full);
    }
  });
}

}  // namespace nibble::kernels::cuda
