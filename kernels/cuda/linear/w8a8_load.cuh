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

// One lane: brings every step of every tile of the CTA, and its part of what
// the cluster shares to all of the cluster.
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
  const int x_part = kSharesW ? 0 : rank, w_part = kSharesW ? rank : 0;
  const int x_parts = kSharesW ? 1 : p.cluster;
  const int bytes = x_parts * p.x_box * kStep + T::kWBytes;
  W8Cursor<T> cursor;
#pragma unroll 1
  for (int item = W8FirstItem(p); item < p.row_items * p.column_items;
       item += W8ItemStep(p)) {
    const W8Place place = PlaceW8(p, T::kTile, item, rank);
    const int x_row = place.row + x_part * p.x_box;
    const int w_row = place.column + w_part * p.w_box;
    // The scales of the tile's rows of x, as far as there are any.
    const float* scales = nullptr;
    int scales_bytes = 0;
    if constexpr (T::kBlockScales) {
      scales = p.x_scales + place.row;
      const int there = static_cast<int>(p.x_scales_pitch) - place.row;
      scales_bytes = 4 * max(0, min(T::kTile.rows, there));
    }
#pragma unroll 1
    for (int block = 0; block < p.k_blocks; ++block) {
      const int stage = cursor.stage;
      const uint32_t full = barriers.Full(stage);
      // The parity before the first phase counts as ended.
      BarrierWait(barriers.Empty(stage), cursor.parity ^ 1);
      BarrierArriveExpect(full, bytes + scales_bytes);
      const uint32_t to = at + stage * T::kShared.stage_bytes;
      const uint32_t x_to = to + x_part * p.x_box * kStep;
      const uint32_t w_to = to + T::kXBytes + w_part * p.w_box * kStep;
      const int k = block * kStep;
      if (kSharesW || alone) {
        TensorCopy(x_to, x_map, k, x_row, full);
      } else {
        TensorCopyToAll(x_to, x_map, k, x_row, full, everyone);
      }
      if (!kSharesW || alone) {
        TensorCopy(w_to, w_map, k, w_row, full);
      } else {
        TensorCopyToAll(w_to, w_map, k, w_row, full, everyone);
      }
      if constexpr (T::kBlockScales) {
        if (scales_bytes > 0) {
          BulkCopy(at + T::kShared.scales_at + stage * T::kTile.rows * 4,
                   scales, static_cast<uint32_t>(scales_bytes), full);
          scales += p.x_scales_pitch;
        }
      }
      cursor.Next();
    }
  }
}

}  // namespace nibble::kernels::cuda
