// The W4A16 kernel for many rows: which CTA and which warpgroup does what, and
// the barriers they meet at.
#pragma once

#include "kernels/cuda/linear/mma.cuh"
#include "kernels/cuda/linear/tma.cuh"
#include "kernels/cuda/linear/w4_layout.h"
#include "kernels/cuda/linear/w4a16_mid.h"

namespace nibble::kernels::cuda {

inline constexpr int kMidWarps = kMidWarpgroups * 4;  // that compute

// Barriers of BarrierOf: 0 is the CTA's.
inline constexpr int kWarpgroupBarrier = 1;  // and on, one a warpgroup
inline constexpr int kTurnBarrier = 3;       // and on, one a warpgroup

// A MidVariant as a type (see W4Format).
template <int kColumnsOf, int kDepthOf, bool kFusedOf>
struct MidTile {
  static constexpr int kColumns = kColumnsOf;
  static constexpr int kDepth = kDepthOf;
  static constexpr bool kFused = kFusedOf;
  static constexpr int kTiles = kColumns / 8;  // of 8 columns
};

// The barriers in shared memory. By value, one a thread.
template <typename T>
struct MidBarriers {
  uint32_t at;
  int x_stages;

  // Of a stage of x: arrived; free.
  __device__ __forceinline__ uint32_t XFull(int stage) const {
    return at + stage * 8;
  }
  __device__ __forceinline__ uint32_t XEmpty(int stage) const {
    return XFull(x_stages + stage);
  }
  // Of a warpgroup's stage of weights.
  __device__ __forceinline__ uint32_t WFull(int warpgroup, int stage) const {
    return XFull(2 * x_stages + warpgroup * 2 * T::kDepth + stage);
  }
  __device__ __forceinline__ uint32_t WEmpty(int warpgroup, int stage) const {
    return WFull(warpgroup, T::kDepth + stage);
  }
};

// Where a role stands in a ring. By value.
struct RingCursor {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Next(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// A work item: a tile of the result, [kMidRows rows of W][columns of x], and a
// part of k. By value.
struct MidItem {
  int tile;         // of the result
  int part;         // of k
  int row, column;  // of the tile among tiles
  int begin, end;   // blocks along k

  __device__ __forceinline__ MidItem(const MidParams& p, int work) {
    tile = work >> p.parts_log2;
    part = work - (tile << p.parts_log2);
    const int raster = p.by_raster_items(tile);
    const int rest = tile - raster * p.raster_items;
    row = p.by_raster(rest);
    column = (raster - row) * p.raster + rest;
    begin = part * p.part_blocks;
    end = min(begin + p.part_blocks, p.blocks_k);
  }
};

}  // namespace nibble::kernels::cuda
