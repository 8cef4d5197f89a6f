// The warp of the W8A8 kernel that brings x and W to shared memory.
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

// One warp: brings every step of every tile of the CTA, and its part of what
// the cluster shares to all of the cluster. W is no other kernel's result: the
// first stages of it are asked for before the kernels ahead have ended.
template <typename T>
__device__ __forceinline__ void LoadSteps(const W8Params& p, char* shared,
                                          const CUtensorMap* x_map,
                                          const CUtensorMap* w_map,
                                          const W8Barriers<T>& barriers,
                                          int rank) {
  constexpr bool kSharesW = T::kTile.SharesW();
  constexpr int kStep = static_cast<int>(kW8BlockK);
  const uint32_t at = SharedAddress(shared);
  const auto everyone = static_cast<uint16_t>((1 << p.cluster) - 1);
  const bool alone = p.cluster == 1;
  const int x_part = kSharesW ? 0 : rank * p.x_box;  // rows
  const int w_part = kSharesW ? rank * p.w_box : 0;
  const int bytes = (kSharesW ? 1 : p.cluster) * p.x_box * kStep + T::kWBytes;
  // The bytes of the scales of the tile's rows of x, as far as there are any.
  const auto scales_bytes = [&](const W8Place& place) {
    const int there = static_cast<int>(p.x_scales_pitch) - place.row;
    return T::kBlockScales ? 4 * max(0, min(T::kTile.rows, there)) : 0;
  };
  // The bytes of the scales of the tile's rows of W, likewise.
  const auto w_scales_bytes = [&](const W8Place& place) {
    const int there = static_cast<int>(p.w_scales_pitch) - place.column;
    return T::kGroupScales ? 4 * max(0, min(T::kTile.columns, there)) : 0;
  };
  const auto load_w = [&](const W8Place& place, int stage, uint32_t parity,
                          int block) {
    const uint32_t full = barriers.Full(stage);
    BarrierArriveExpect(full,
                        bytes + scales_bytes(place) + w_scales_bytes(place));
    if constexpr (T::kGroupScales) {
      const int scales = w_scales_bytes(place);
      if (scales > 0) {
        BulkCopy(at + T::kShared.scales_at +
                     W8ScalesSlot<T>(stage, parity) * T::kTile.columns * 4,
                 p.w_scales + block * p.w_scales_pitch + place.column, scales,
                 full);
      }
    }
    const uint32_t to =
        at + stage * T::kShared.stage_bytes + T::kXBytes + w_part * kStep;
    const int row = place.column + w_part;
    if (!kSharesW || alone) {
      TensorCopy(to, w_map, block * kStep, row, full);
    } else {
      TensorCopyToAll(to, w_map, block * kStep, row, full, everyone);
    }
  };
  const auto load_x = [&](const W8Place& place, int stage, int block) {
    const uint32_t full = barriers.Full(stage);
    const uint32_t to = at + stage * T::kShared.stage_bytes + x_part * kStep;
    const int row = place.row + x_part;
    if (kSharesW || alone) {
      TensorCopy(to, x_map, block * kStep, row, full);
    } else {
      TensorCopyToAll(to, x_map, block * kStep, row, full, everyone);
    }
    if constexpr (T::kBlockScales) {
      const int scales = scales_bytes(place);
      if (scales > 0) {
        BulkCopy(at + T::kShared.scales_at + stage * T::kTile.rows * 4,
                 p.x_scales + block * p.x_scales_pitch + place.row, scales,
                 full);
      }
    }
  };

  int item = W8FirstItem(p);
  int early = min(p.k_blocks, T::kStages);
  {
    const W8Place place = PlaceW8(p, T::kTile, item, rank);
    for (int block = 0; block < early; ++block) {
      if (ElectLane()) load_w(place, block, 0, block);
      __syncwarp();
    }
  }
  WaitForDependency();
  W8Cursor<T> cursor;
#pragma unroll 1
  for (; item < p.row_items * p.column_items; item += W8ItemStep(p)) {
    const W8Place place = PlaceW8(p, T::kTile, item, rank);
#pragma unroll 1
    for (int block = 0; block < p.k_blocks; ++block) {
      const bool ask_w = early <= 0;
      --early;
      // The parity before the first phase counts as ended.
      if (ask_w) BarrierWait(barriers.Empty(cursor.stage), cursor.parity ^ 1);
      if (ElectLane()) {
        if (ask_w) load_w(place, cursor.stage, cursor.parity, block);
        load_x(place, cursor.stage, block);
      }
      __syncwarp();
      cursor.Next();
    }
  }
}

}  // namespace nibble::kernels::cuda
