// How the W4A16 kernel for many rows shares its work out: what a CTA is of its
// cluster and grid, and the blocks of W that a warpgroup walks.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/linear/mma.cuh"
#include "kernels/cuda/linear/tma.cuh"
#include "kernels/cuda/linear/w4_layout.h"
#include "kernels/cuda/linear/w4a16_mid.h"

namespace nibble::kernels::cuda {

// This CTA's place, and where its barriers are. By value, one a thread.
struct MidCta {
  const MidParams& p;
  char* shared;
  int cluster, clusters;
  int rank_m, rank_k;
  int slices;  // of each tile, that this CTA of its cluster takes

  __device__ __forceinline__ MidCta(const MidParams& params, char* memory)
      : p(params), shared(memory) {
    const int cta = blockIdx.x, log2 = p.multicast_log2 + p.k_ctas_log2;
    cluster = cta >> log2;
    clusters = gridDim.x >> log2;
    rank_m = cta & (Multicast() - 1);
    rank_k = (cta >> p.multicast_log2) & (KCtas() - 1);
    slices = SlicesOf(rank_k);
  }
  __device__ __forceinline__ int RowTiles() const {
    return 1 << p.row_tiles_log2;
  }
  __device__ __forceinline__ int KParts() const { return 1 << p.k_parts_log2; }
  __device__ __forceinline__ int Multicast() const {
    return 1 << p.multicast_log2;
  }
  __device__ __forceinline__ int KCtas() const { return 1 << p.k_ctas_log2; }
  __device__ __forceinline__ bool InCluster() const {
    return p.multicast_log2 + p.k_ctas_log2 > 0;
  }
  // Slices are dealt to the CTAs along k in turn, those of one CTA to its
  // parts.
  __device__ __forceinline__ int SlicesOf(int k_cta) const {
    return (p.slices - k_cta + KCtas() - 1) >> p.k_ctas_log2;
  }

  // Number `index` of the CTA's slices.
  __device__ __forceinline__ int Slice(int index) const {
    return (index << p.k_ctas_log2) + rank_k;
  }

  // Barriers. A stage of x: arrived; free; prepared.
  __device__ __forceinline__ uint32_t Barrier(int i) const {
    return SharedAddress(shared) + p.barriers_at + i * 8;
  }
  __device__ __forceinline__ int Stages() const {
    return p.x_stages << p.k_parts_log2;
  }
  __device__ __forceinline__ uint32_t Full(int stage) const {
    return Barrier(stage);
  }
  __device__ __forceinline__ uint32_t Empty(int stage) const {
    return Barrier(Stages() + stage);
  }
  __device__ __forceinline__ uint32_t Ready(int stage) const {
    return Barrier(2 * Stages() + stage);
  }
  // A warpgroup's warp has added its slice to the totals.
  __device__ __forceinline__ uint32_t Added(int warpgroup, int warp) const {
    return Barrier(3 * Stages() + warpgroup * 4 + warp);
  }
  // A slot for a slice of CTA `k_cta` > 0: filled; free (in that CTA).
  __device__ __forceinline__ int GivenIndex(int k_cta, int slot,
                                            int row_tile) const {
    return (((k_cta - 1) * p.given_slots + slot) << p.row_tiles_log2) +
           row_tile;
  }
  __device__ __forceinline__ int Givens() const {
    return ((KCtas() - 1) * p.given_slots) << p.row_tiles_log2;
  }
  __device__ __forceinline__ uint32_t Given(int index, int warp) const {
    return Barrier(3 * Stages() + (4 << (p.row_tiles_log2 + p.k_parts_log2)) +
                   index * 4 + warp);
  }
  __device__ __forceinline__ uint32_t Taken(int index, int warp) const {
    return Given(Givens() + index, warp);
  }

  // One thread each: the barriers that x waits for, and the others. Loops, not
  // lanes, of which each would take the same time, and little code, since it
  // stands before the first load of x. `prepare_arrivals`: how many arrive at
  // Ready; `given_bytes`: what a warp gives.
  __device__ __forceinline__ void InitStageBarriers() const {
    const int users = 4 << (p.row_tiles_log2 + p.multicast_log2);
#pragma unroll 1
    for (int i = 0; i < Stages(); ++i) {
      BarrierInit(Full(i), 1);
      BarrierInit(Empty(i), users);
    }
    FenceBarrierInit();
  }
  __device__ __forceinline__ void InitOtherBarriers(int prepare_arrivals,
                                                    int given_bytes) const {
#pragma unroll 1
    for (int i = 0; i < Stages(); ++i) BarrierInit(Ready(i), prepare_arrivals);
    const int ones = (4 << (p.row_tiles_log2 + p.k_parts_log2)) + 8 * Givens();
#pragma unroll 1
    for (int i = 0; i < ones; ++i) BarrierInit(Added(0, i), 1);
    FenceBarrierInit();
#pragma unroll 1
    for (int i = 0; i < 4 * Givens(); ++i) {
      BarrierArriveExpect(Given(0, i), given_bytes);
    }
  }

  // The column tile of x of a work item, and the 64-row tile of W.
  struct Tile {
    int column, row;
  };
  __device__ __forceinline__ Tile TileOf(int work, int row_tile) const {
    const int group = p.by_raster_work(work);
    const int rest = work - group * p.raster_work;
    const int row_cluster = p.by_raster(rest);
    const int column = (group - row_cluster) * p.raster + rest;
    const int row_cta = (row_cluster << p.multicast_log2) + rank_m;
    return {column, (row_cta << p.row_tiles_log2) + row_tile};
  }
};

// The slices of one part of k, through all of the CTA's work: a CTA's slices,
// also from tile to tile, are dealt to its parts in turn. By value.
struct MidSlices {
  int work;      // item
  int tile = 0;  // how many items came before
  int index;     // of the slice among the CTA's of the item

  __device__ __forceinline__ MidSlices(const MidCta& cta, int part)
      : work(cta.cluster), index(part) {
    Carry(cta);
  }
  __device__ __forceinline__ bool Ended(const MidCta& cta) const {
    return work >= cta.p.work;
  }
  // True when it came to another item.
  __device__ __forceinline__ bool Next(const MidCta& cta) {
    index += cta.KParts();
    return Carry(cta);
  }
  // First of its blocks along k, and how many they are.
  __device__ __forceinline__ int Block(const MidCta& cta) const {
    return cta.Slice(index) * cta.p.slice_blocks;
  }
  __device__ __forceinline__ int Blocks(const MidCta& cta) const {
    return min(cta.p.slice_blocks, cta.p.blocks_k - Block(cta));
  }

 private:
  __device__ __forceinline__ bool Carry(const MidCta& cta) {
    const bool other = index >= cta.slices;
    while (index >= cta.slices) {
      index -= cta.slices;
      work += cta.clusters;
      ++tile;
    }
    return other;
  }
};

// Their blocks. By value.
struct MidBlocks {
  MidSlices slices;
  int block;  // along k
  int left;   // of the slice, this one included

  __device__ __forceinline__ MidBlocks(const MidCta& cta, int part)
      : slices(cta, part) {
    Enter(cta);
  }
  __device__ __forceinline__ bool Ended(const MidCta& cta) const {
    return slices.Ended(cta);
  }
  // True when it came to another item.
  __device__ __forceinline__ bool Next(const MidCta& cta) {
    ++block;
    if (--left > 0) return false;
    const bool other = slices.Next(cta);
    Enter(cta);
    return other;
  }

 private:
  __device__ __forceinline__ void Enter(const MidCta& cta) {
    block = slices.Block(cta);
    left = slices.Blocks(cta);
  }
};

}  // namespace nibble::kernels::cuda
