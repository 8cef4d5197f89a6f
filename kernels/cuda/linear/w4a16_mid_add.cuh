// The W4A16 kernel for many rows: how warpgroups that share a tile add their
// slices up, in ascending order.
#pragma once

#include "kernels/cuda/linear/w4a16_mid_store.cuh"
#include "kernels/cuda/linear/w4a16_mid_walk.cuh"

namespace nibble::kernels::cuda {

// One more warpgroup helps: a warp loads x, the others prepare it.
inline constexpr int kHelpers = 4;
template <int kWarpgroups>
inline constexpr int kMidThreads = (kWarpgroups + 1) * kWarpgroupThreads;

// Barriers of BarrierOf: 0 is the CTA's.
inline constexpr int kWarpgroupBarrier = 1;  // and on, one a warpgroup
inline constexpr int kTurnBarrier = 5;       // and on, one a warpgroup

// A MidVariant as a type (see W4Format).
template <int kColumnsOf, int kWarpgroupsOf, int kDepthOf, bool kPreparedOf,
          MidTotal kTotalOf>
struct MidTile {
  static constexpr int kColumns = kColumnsOf;
  static constexpr int kWarpgroups = kWarpgroupsOf;
  static constexpr int kDepth = kDepthOf;
  static constexpr bool kPrepared = kPreparedOf;
  static constexpr MidTotal kTotal = kTotalOf;
  static constexpr int kTiles = kColumns / 8;  // of 8 columns
  // Registers of a thread that helps and of one that computes: what a
  // multiprocessor has.
  static constexpr int kHelpRegisters = kWarpgroups == 2 ? 24
                                        : kPrepared      ? 32
                                                         : 64;
  static constexpr int kComputeRegisters = kWarpgroups == 2 ? 240
                                           : kPrepared      ? 112
                                                            : 104;
  // Bytes of a warpgroup's tile as its threads hold it, [kTiles][thread][4].
  static constexpr int kFragmentBytes = kTiles * kWarpgroupThreads * 16;
};

// Adds a slice to the total of the warpgroup's tile, in CTA 0 along k; stores
// the tile with the last. `dealt`: how many this warpgroup has added before.
template <typename T>
__device__ __forceinline__ void AddSlice(const MidCta& cta, int warpgroup,
                                         const MidSlices& slice, int dealt,
                                         float (&y)[T::kTiles][4]) {
  const MidParams& p = cta.p;
  const int thread = threadIdx.x % kWarpgroupThreads;
  const int lane = thread % 32, warp = thread / 32;
  const int row_tile = warpgroup & (cta.RowTiles() - 1);
  const int part = warpgroup >> p.row_tiles_log2;
  const int index = slice.index, tile = slice.tile;
  const auto slot_at = [&](int slot) {
    return cta.shared + p.given_at + slot * T::kFragmentBytes + thread * 16;
  };
  const bool split = p.k_ctas_log2 > 0;
  if (split && cta.rank_k != 0) {
    const int count = tile * cta.slices + index;
    const int slot = cta.GivenIndex(1, count % p.given_slots, row_tile);
    BarrierWait(cta.Taken(slot, warp), count / p.given_slots % 2 ^ 1);
    const uint32_t to = InCta(SharedAddress(slot_at(slot)), cta.rank_m);
    const uint32_t barrier = InCta(cta.Given(slot, warp), cta.rank_m);
#pragma unroll
    for (int i = 0; i < T::kTiles; ++i) {
      StoreAsync16(to + i * kWarpgroupThreads * 16,
                   make_float4(y[i][0], y[i][1], y[i][2], y[i][3]), barrier);
    }
    return;
  }
  const bool first = index == 0, last = index == cta.slices - 1;
  if (p.k_parts_log2 > 0 && dealt + part > 0) {
    // After the part before, which the last part is of part 0.
    const int before = part > 0 ? part - 1 : cta.KParts() - 1;
    const int phase = part > 0 ? dealt : dealt - 1;
    BarrierWait(cta.Added((before << p.row_tiles_log2) + row_tile, warp),
                phase % 2);
  }
  // y = v + y, v the sum of what was before.
  const auto add = [&](int i, float4 v) {
    y[i][0] = __fadd_rn(v.x, y[i][0]);
    y[i][1] = __fadd_rn(v.y, y[i][1]);
    y[i][2] = __fadd_rn(v.z, y[i][2]);
    y[i][3] = __fadd_rn(v.w, y[i][3]);
  };
  const auto wait_given = [&](int of) {
    const int count = tile * cta.SlicesOf(1) + of;
    const int slot = cta.GivenIndex(1, count % p.given_slots, row_tile);
    BarrierWait(cta.Given(slot, warp), count / p.given_slots % 2);
    return slot;
  };
  const auto give_back = [&](int slot) {
    __syncwarp();
    if (lane != 0) return;
    BarrierArriveExpect(cta.Given(slot, warp), T::kFragmentBytes / 4);
    BarrierArriveInCluster(
        InCta(cta.Taken(slot, warp), cta.Multicast() + cta.rank_m));
  };
  char* const total =
      cta.shared + p.total_at + row_tile * (T::kColumns * kTotalPitch * 4);
  auto* const own = reinterpret_cast<float4*>(total) + thread;
  if (!first) {
    if (split) {
      const int slot = wait_given(index - 1);
#pragma unroll
      for (int i = 0; i < T::kTiles; ++i) {
        float4 v = own[i * kWarpgroupThreads];
        const float4 given = *reinterpret_cast<const float4*>(
            slot_at(slot) + i * kWarpgroupThreads * 16);
        v.x = __fadd_rn(v.x, given.x);
        v.y = __fadd_rn(v.y, given.y);
        v.z = __fadd_rn(v.z, given.z);
        v.w = __fadd_rn(v.w, given.w);
        add(i, v);
      }
      give_back(slot);
    } else {
#pragma unroll
      for (int i = 0; i < T::kTiles; ++i) add(i, own[i * kWarpgroupThreads]);
    }
  }
  if (last) {
    if (split && index < cta.SlicesOf(1)) {
      const int slot = wait_given(index);
#pragma unroll
      for (int i = 0; i < T::kTiles; ++i) {
        add(i, *reinterpret_cast<const float4*>(slot_at(slot) +
                                                i * kWarpgroupThreads * 16));
      }
      give_back(slot);
    }
    const auto at = cta.TileOf(slice.work, row_tile);
    StoreTile<T::kColumns>(p, y, reinterpret_cast<float*>(total),
                           at.column * T::kColumns, at.row * kWarpgroupRows,
                           thread, kWarpgroupBarrier + warpgroup);
    BarrierOf(kWarpgroupBarrier + warpgroup, kWarpgroupThreads);
  } else {
#pragma unroll
    for (int i = 0; i < T::kTiles; ++i) {
      own[i * kWarpgroupThreads] =
          make_float4(y[i][0], y[i][1], y[i][2], y[i][3]);
    }
  }
  if (p.k_parts_log2 > 0) {
    __syncwarp();
    if (lane == 0) BarrierArrive(cta.Added(warpgroup, warp));
  }
}

}  // namespace nibble::kernels::cuda
