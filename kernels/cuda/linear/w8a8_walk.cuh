// The W8A8 kernel: which CTA and which warpgroup does what, and the barriers
// they meet at.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/cuda/linear/mma.cuh"
#include "kernels/cuda/linear/tma.cuh"
#include "kernels/cuda/linear/w8a8_plan.h"

namespace nibble::kernels::cuda {

// Barrier of BarrierOf: 0 is the CTA's, from here on one a warpgroup.
inline constexpr int kW8WarpgroupBarrier = 1;

// A kind and a tile as a type; of gate/up weights or of others.
template <W8Kind kKindOf, W8Tile kTileOf, bool kSiluMulOf = false>
struct W8Kernel {
  static constexpr bool kSiluMul = kSiluMulOf;
  static constexpr W8Kind kKind = kKindOf;
  static constexpr W8Tile kTile = kTileOf;
  static constexpr W8Shared kShared = LayOutW8(kKind, kTile);
  static_assert(kShared.stages >= 3, "too few stages to hide memory");
  static_assert(kTile.PartColumns() % kW8RowGroup == 0,
                "threads store the columns of whole groups");

  static constexpr int kStages = kShared.stages;
  static constexpr bool kPingPong = kTile.schedule == W8Schedule::kPingPong;
  static constexpr int kWarpgroups = kTile.Warpgroups();  // that compute
  static constexpr int kThreads = (kWarpgroups + 1) * kW8WarpgroupThreads;
  static constexpr int kPartThreads = kW8WarpgroupThreads;
  // Warps that read a stage.
  static constexpr int kReaders = kPingPong ? 4 : 4 * kWarpgroups;
  static constexpr int kXBytes = kTile.rows * static_cast<int>(kW8BlockK);
  static constexpr int kWBytes = kTile.columns * static_cast<int>(kW8BlockK);

  // A warpgroup's part of a tile: wgmma of 64 rows, and of all its columns or,
  // where sums wait to be added to others, of half.
  static constexpr bool kBlockScales = kKind == W8Kind::kE4m3Block;
  static constexpr bool kGroupScales = kKind == W8Kind::kInt8Group;
  static constexpr bool kPromoted = IsPromoted(kKind);
  static constexpr int kRowParts = kTile.PartRows() / 64;
  static constexpr int kColumnParts =
      kPromoted && kTile.PartColumns() > 224 ? 2 : 1;
  static constexpr int kTiles = kTile.PartColumns() / kColumnParts / 8;
  // Steps whose products are under way at once: narrow ones are over soon, and
  // would leave the tensor cores idle while they are added.
  static constexpr int kTogether = !kPromoted || kRowParts * kColumnParts > 1
                                       ? 1
                                   : kTiles <= 8  ? 4
                                   : kTiles <= 16 ? 2
                                                  : 1;
  // Steps in a straight run of code, at whose end the tensor cores wait for the
  // last sums to be added. Narrow tiles wait for memory, and for their code.
  static constexpr int kStraight = kTogether == 2 ? 8 : kTogether;
  static_assert(kStages >= kTogether);
  static_assert(!kBlockScales ||
                    kW8BlockN % (kTile.PartColumns() / kColumnParts) == 0,
                "a product of blocks has one scale of W");
  // Whether plain results wait in registers until the next tile's first steps
  // are under way, and how many those are where sums stay in place. In
  // ping-pong the other warpgroup multiplies meanwhile; narrow tiles have no
  // next one.
  static constexpr bool kHolds =
      kTile.schedule == W8Schedule::kRows && !kSiluMul;
  static constexpr int kHeldSteps = 8;
  // Promoted sums: parts of what is held, of which one is stored under the
  // first step. The next step has registers for the other one where rows are
  // few.
  static constexpr int kHeldParts =
      kKind == W8Kind::kE4m3 && kTile.PartColumns() == 256 ? 2 : 1;
  // Registers of a thread that loads and of one that computes, where there are
  // three warpgroups: all that a multiprocessor has.
  static constexpr bool kStepScales = kBlockScales || kGroupScales;
  static constexpr int kLoadRegisters = kStepScales ? 40 : 24;
  static constexpr int kComputeRegisters = kStepScales ? 232 : 240;
  static_assert(kLoadRegisters + 2 * kComputeRegisters == 504);
  // A thread's sums, [row part][column part][eight of columns][4].
  using Number = std::conditional_t<kPromoted, float, uint32_t>;
  using Sums = Number[kRowParts][kColumnParts][kTiles][4];
};

// The barriers in shared memory. By value, one a thread.
template <typename T>
struct W8Barriers {
  uint32_t at;

  // Of a stage: arrived; free.
  __device__ __forceinline__ uint32_t Full(int stage) const {
    return at + stage * 8;
  }
  __device__ __forceinline__ uint32_t Empty(int stage) const {
    return Full(T::kStages + stage);
  }
  // That a warpgroup may begin with its tile (kPingPong).
  __device__ __forceinline__ uint32_t Turn(int warpgroup) const {
    return Full(2 * T::kStages + warpgroup);
  }
};

// Where a role stands in the ring of stages. By value.
template <typename T>
struct W8Cursor {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Next() {
    if (++stage == T::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void Skip(int stages) {
    const int to = stage + stages;
    parity ^= to / T::kStages & 1;
    stage = to % T::kStages;
  }
};

// Which scales in shared memory a stage has (kInt8Group). They are read after
// the stage was given back, so that the ones of the next round go elsewhere.
template <typename T>
__device__ __forceinline__ int W8ScalesSlot(int stage, uint32_t parity) {
  return stage + static_cast<int>(parity) * T::kStages;
}

// The work items of a cluster, one after the other.
__device__ __forceinline__ int W8FirstItem(const W8Params& p) {
  return static_cast<int>(blockIdx.x) / p.cluster;
}
__device__ __forceinline__ int W8ItemStep(const W8Params& p) {
  return static_cast<int>(gridDim.x) / p.cluster;
}

// Arrives at a barrier of any CTA of the cluster (InCta).
__device__ __forceinline__ void ArriveAt(uint32_t in_cta) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _,[%0];" ::"r"(in_cta)
               : "memory");
}

// body(0), body(1), ... body(kCount - 1), each number a type of its own
// (std::integral_constant).
template <int kCount, typename Body>
__device__ __forceinline__ void Unrolled(const Body& body) {
  [&]<int... kNumbers>(std::integer_sequence<int, kNumbers...> /*all*/) {
    (body(std::integral_constant<int, kNumbers>{}), ...);
  }
  (std::make_integer_sequence<int, kCount>{});
}

// The CTA's place in its cluster.
__device__ __forceinline__ int CtaRank() {
  uint32_t rank;
  asm("mov.u32 %0,%%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

}  // namespace nibble::kernels::cuda
