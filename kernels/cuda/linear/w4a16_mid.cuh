// W4A16 for many rows on Hopper: weights decoded in registers as the A operand
// of wgmma, x as its B operand from shared memory.
//
// Two warpgroups compute 64 rows of W each times kColumns rows of x ("columns"
// from here on); a third brings x by tensor copies and packed weights by bulk
// copies. Work items are walked by a persistent grid, and nothing drains
// between two of them. x is prepared by a small kernel ahead
// (w4a16_prepare.cuh).
//
// The chain of a group is in accumulators; its scales are applied while other
// products run, those of the other warpgroup or of the next group. At 128
// columns registers hold accumulators of one group besides the sums of the
// slice and of the quarter, so that the warpgroups take turns at the tensor
// cores. Where a slice is a block of two groups ("fused"), accumulators of both
// stand for the slice's sum: none is kept and cleared, and turns are of a
// block.
//
// Where there are few tiles the four quarters of k (w4_layout.h) go to four
// CTAs; the last to finish adds their results.
#pragma once

#include <utility>

#include "kernels/cuda/linear/w4a16_mid_load.cuh"
#include "kernels/cuda/linear/w4a16_mid_store.cuh"
#include "kernels/cuda/linear/wgmma.cuh"

namespace nibble::kernels::cuda {

// Registers of a thread that helps and of one that computes: all that a
// multiprocessor has.
inline constexpr int kHelpRegisters = 24;
inline constexpr int kComputeRegisters = 240;

// body(0), body(1), ... body(kCount - 1), each number a type of its own
// (std::integral_constant), so that registers can be chosen by it.
template <int kCount, typename Body>
__device__ __forceinline__ void Unrolled(const Body& body) {
  [&]<int... kNumbers>(std::integer_sequence<int, kNumbers...> /*all*/) {
    (body(std::integral_constant<int, kNumbers>{}), ...);
  }
  (std::make_integer_sequence<int, kCount>{});
}

// A warpgroup's ring of packed blocks, as one of its lanes reads it. By value.
template <typename F, typename T>
class WeightRing {
 public:
  __device__ __forceinline__ WeightRing(const MidParams& p, uint32_t shared,
                                        const MidBarriers<T>& barriers,
                                        int warpgroup)
      : barriers_(barriers), warpgroup_(warpgroup) {
    const int warp = threadIdx.x % kWarpgroupThreads / 32;
    base_ = shared + p.ring_at +
            (warpgroup * T::kDepth * 4 + warp) * F::kBlockBytes;
    read_ = base_;
  }
  // Waits for the block to read.
  __device__ __forceinline__ void Wait() const {
    BarrierWait(barriers_.WFull(warpgroup_, cursor_.stage), cursor_.parity);
  }
  __device__ __forceinline__ void Turn() {
    cursor_.Next(T::kDepth);
    read_ = base_ + cursor_.stage * (4 * F::kBlockBytes);
  }
  __device__ __forceinline__ uint4 Codes(int quarter) const {
    return LoadShared16At(read_ + threadIdx.x % 32 * 16 + quarter * 512);
  }
  __device__ __forceinline__ uint32_t Block() const { return read_; }
  // The barrier that says that the block's stage is free.
  __device__ __forceinline__ uint32_t Empty() const {
    return barriers_.WEmpty(warpgroup_, cursor_.stage);
  }

 private:
  const MidBarriers<T>& barriers_;
  const int warpgroup_;
  RingCursor cursor_;
  uint32_t base_, read_;
};

// A warpgroup's work, from the first block to the last.
template <typename F, XType X, typename T>
__device__ __forceinline__ void Compute(const MidParams& p, char* shared_memory,
                                        const MidBarriers<T>& barriers,
                                        int warpgroup) {
  constexpr int kColumns = T::kColumns, kTiles = T::kTiles;
  // A unit: steps of one group whose A operands are in registers together.
  // One is decoded while the one before runs.
  constexpr int kGroupSteps = F::group / kStepK;
  constexpr int kMaxSteps = kColumns == 128               ? 2
                            : kColumns == 32 && T::kFused ? 4
                                                          : 8;
  constexpr int kUnitSteps = kGroupSteps < kMaxSteps ? kGroupSteps : kMaxSteps;
  constexpr int kUnits = kBlockK / kStepK / kUnitSteps;
  constexpr int kGroupUnits = kGroupSteps / kUnitSteps;
  constexpr int kStageUnits = kUnits / BlockStages(kColumns);
  static_assert(StageK(kColumns) >= kUnitSteps * kStepK);
  static_assert(!T::kFused || F::kGroupsPerBlock == 2, "of two groups");
  // Accumulators of two groups, where there are registers for that.
  constexpr int kAccs = kColumns == 128 && !T::kFused ? 1 : 2;
  constexpr bool kTurns = kColumns == 128;
  constexpr int kTurnUnits = T::kFused ? kUnits : kGroupUnits;

  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t shared = SharedAddress(shared_memory);
  WeightRing<F, T> ring(p, shared, barriers, warpgroup);
  // The warpgroup's: sums of quarters, and what StoreTile needs.
  auto* const own = reinterpret_cast<float*>(shared_memory + p.stash_at) +
                    warpgroup * (kColumns * kTotalPitch);
  auto* const stash =
      reinterpret_cast<float4*>(own) + threadIdx.x % kWarpgroupThreads;
  const auto take_turn = [&] {
    if constexpr (kTurns) {
      BarrierOf(kTurnBarrier + warpgroup, 2 * kWarpgroupThreads);
    }
  };
  const auto give_turn = [&] {
    if constexpr (kTurns) {
      BarrierArriveOf(kTurnBarrier + 1 - warpgroup, 2 * kWarpgroupThreads);
    }
  };
  if (warpgroup == 1) give_turn();

  uint32_t a[2][kUnitSteps][4];
  uint4 quads[2];  // quarters of a block's codes: this one and the next
  const auto decode = [&](auto unit) {
    constexpr int kUnit = decltype(unit)::value;
#pragma unroll
    for (int s = 0; s < kUnitSteps; ++s) {
      const int step = kUnit * kUnitSteps + s;
      const uint4& quad = quads[step / 4 % 2];
      const uint32_t word = step % 4 == 0   ? quad.x
                            : step % 4 == 1 ? quad.y
                            : step % 4 == 2 ? quad.z
                                            : quad.w;
      Decode<F, X>(word, a[kUnit % 2][s]);
    }
  };
  // Decodes a unit, the `kAhead`-th from the beginning of a block on, and asks
  // for the quarters that take the places of those it was in, be they of the
  // next block.
  const auto decode_ahead = [&](auto ahead, bool more) {
    constexpr int kAhead = decltype(ahead)::value;
    decode(std::integral_constant<int, kAhead % kUnits>{});
    constexpr int kFirst = kAhead * kUnitSteps / 4;
    constexpr int kEnd = (kAhead + 1) * kUnitSteps / 4;
    Unrolled<kEnd - kFirst>([&](auto decoded) {
      constexpr int kQuarter = kFirst + decltype(decoded)::value + 2;
      if constexpr (kQuarter == 4) {
        ring.Turn();
        if (more) ring.Wait();
      }
      quads[kQuarter % 2] = ring.Codes(kQuarter % 4);
    });
  };
  ring.Wait();
  quads[0] = ring.Codes(0);
  quads[1] = ring.Codes(1);
  decode_ahead(std::integral_constant<int, 0>{}, true);

  const int sum_slots = SumSlots(kColumns, p.x_stages);
  RingCursor x;
  int sum_slot = 0;
  float acc[kAccs][kTiles][4];
#pragma unroll 1
  for (int work = blockIdx.x; work < p.work; work += gridDim.x) {
    const MidItem item(p, work);
    const bool last_item = work + static_cast<int>(gridDim.x) >= p.work;
    // Sums of the quarter and, but for the fused kernel, of the slice; adding
    // to minus zero changes nothing.
    float held[kTiles][4];
    float y[T::kFused ? 1 : kTiles][4];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) held[i][e] = -0.0f;
    }
    int slice_left = 0, quarter_left = p.quarter_blocks;
    bool stashed = false;
    int quarter = item.part * (kSliceSharers >> p.parts_log2);
#pragma unroll 1
    for (int block = item.begin; block < item.end; ++block) {
      if constexpr (!T::kFused) {
        if (slice_left == 0) {
          slice_left = p.slice_blocks;
#pragma unroll
          for (int i = 0; i < kTiles; ++i) {
#pragma unroll
            for (int e = 0; e < 4; ++e) y[i][e] = 0;
          }
        }
      }
      const char* const scales =
          shared_memory + (ring.Block() - shared) + kCodeBytes;
      const uint32_t block_empty = ring.Empty();
      const float* const sums =
          reinterpret_cast<const float*>(shared_memory + p.sums_at) +
          sum_slot * (F::kGroupsPerBlock * SumsPitch(kColumns)) +
          t * (SumsPitch(kColumns) / 4);
      const auto sums_of = [&](int group, int i) {
        float4 s = {};
        if constexpr (kNeedsSums<F>) {
          s = *reinterpret_cast<const float4*>(
              sums + group * SumsPitch(kColumns) + i * 2);
        }
        return s;
      };
      const auto add_group = [&](int group) {
        const GroupScale scale = BlockScales<F, X>(scales, g).At(group);
        HoldAccumulators(acc[group % kAccs]);
        float4 next = sums_of(group, 0);
#pragma unroll
        for (int i = 0; i < kTiles; i += 2) {
          const float4 s = next;
          if (i + 2 < kTiles) next = sums_of(group, i + 2);
          AddGroup<F, X>(scale, acc[group % kAccs][i], make_float2(s.x, s.y),
                         y[i]);
          AddGroup<F, X>(scale, acc[group % kAccs][i + 1],
                         make_float2(s.z, s.w), y[i + 1]);
        }
      };
      uint64_t operand = 0;
      uint32_t x_empty = 0;
      const bool last_block = block + 1 == item.end && last_item;
      Unrolled<kUnits>([&](auto unit) {
        constexpr int u = decltype(unit)::value;
        constexpr int kGroup = u / kGroupUnits;
        uint32_t left = 0;  // the stage of x whose products have ended soon
        if constexpr (u % kStageUnits == 0) {
          left = x_empty;
          // Told to be the same for all lanes, it stays in a uniform register.
          const int stage = __shfl_sync(~0u, x.stage, 0);
          operand = SwizzledOperand(shared + stage * StageBytes(kColumns));
          x_empty = barriers.XEmpty(stage);
          BarrierWait(barriers.XFull(stage), x.parity);
          x.Next(p.x_stages);
        }
        if constexpr (u % kTurnUnits == 0) take_turn();
          // Made before the fence, not between products.
#pragma unroll
        for (int s = 0; s < kUnitSteps; ++s) HoldOperand(a[u % 2][s]);
        if constexpr (u % kGroupUnits == 0)
          HoldAccumulators(acc[kGroup % kAccs]);
        WgmmaFence();
#pragma unroll
        for (int s = 0; s < kUnitSteps; ++s) {
          const int step = (u * kUnitSteps + s) % (StageK(kColumns) / kStepK);
          Wgmma<X>(acc[kGroup % kAccs], a[u % 2][s],
                   operand + step / 4 * (kColumns * 128 >> 4) +
                       step % 4 * kDescriptorStep,
                   u % kGroupUnits + s > 0);
        }
        WgmmaCommit();
        if constexpr ((u + 1) % kTurnUnits == 0) give_turn();
        // A group of several units is added under the second after it.
        if constexpr (kAccs > 1 && !T::kFused && kGroupUnits > 1 &&
                      u >= kGroupUnits + 1 && (u - 1) % kGroupUnits == 0) {
          add_group(kGroup - 1);
        }
        if constexpr (u > 0) WgmmaWait<1>();
        if constexpr (u % kStageUnits == 0 && u > 0) {
          __syncwarp();
          if (lane == 0) BarrierArrive(left);
        }
        decode_ahead(std::integral_constant<int, u + 1>{}, !last_block);
        // One of a single unit is added under the first, and a group whose
        // accumulators the next one needs at once.
        if constexpr (kAccs > 1 && !T::kFused && kGroupUnits == 1 && u > 0) {
          add_group(u - 1);
        }
        if constexpr (kAccs == 1 && (u + 1) % kGroupUnits == 0 &&
                      u + 1 < kUnits) {
          WgmmaWait<0>();
          add_group(kGroup);
        }
      });
      if constexpr (T::kFused) {
        const BlockScales<F, X> both(scales, g);
        const GroupScale scale[2] = {both.At(0), both.At(1)};
        float4 next[2] = {sums_of(0, 0), sums_of(1, 0)};
        WgmmaWait<0>();
        __syncwarp();
        if (lane == 0) BarrierArrive(x_empty);
        HoldAccumulators(acc[0]);
        HoldAccumulators(acc[1]);
#pragma unroll
        for (int i = 0; i < kTiles; i += 2) {
          float sum[2][4] = {};
#pragma unroll
          for (int group = 0; group < 2; ++group) {
            const float4 s = next[group];
            if (i + 2 < kTiles) next[group] = sums_of(group, i + 2);
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
        WgmmaWait<0>();
        __syncwarp();
        if (lane == 0) BarrierArrive(x_empty);
        add_group(F::kGroupsPerBlock - 1);
        if (--slice_left == 0 || block + 1 == item.end) {
#pragma unroll
          for (int i = 0; i < kTiles; ++i) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              held[i][e] = __fadd_rn(held[i][e], y[i][e]);
            }
          }
        }
      }
      __syncwarp();
      if (lane == 0) BarrierArrive(block_empty);
      if (++sum_slot == sum_slots) sum_slot = 0;
      if (--quarter_left == 0 && block + 1 < item.end) {
        quarter_left = p.quarter_blocks;
        // Parts behind the first leave their quarters apart.
        if (stashed) {
          AddTo<T>(stash, held);
        } else if (item.part == 0) {
          // Others may still be storing the last tile from there.
          BarrierOf(kWarpgroupBarrier + warpgroup, kWarpgroupThreads);
        }
        stashed = item.part == 0;
        LeaveSum<T>(
            stashed ? stash
                    : SlotAt<T>(p, item.tile, warpgroup, SlotOf(p, quarter)),
            held);
        ++quarter;
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
          for (int e = 0; e < 4; ++e) held[i][e] = -0.0f;
        }
      }
    }
    if (stashed) AddTo<T>(stash, held);
    if (p.parts_log2 > 0) {
      LeaveSum<T>(SlotAt<T>(p, item.tile, warpgroup, SlotOf(p, quarter)), held);
      if (!AddParts<T>(p, item.tile, warpgroup, own, held)) continue;
    }
    StoreTile<kColumns>(p, held, own, item.column * kColumns,
                        item.row * kMidRows + warpgroup * kWarpgroupRows,
                        threadIdx.x % kWarpgroupThreads,
                        kWarpgroupBarrier + warpgroup);
  }
}

template <typename F, XType X, typename T>
__global__ void __launch_bounds__(kMidThreads, 1)
    W4a16Mid(const __grid_constant__ CUtensorMap x_map,
             const __grid_constant__ MidParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char shared[];
  const MidBarriers<T> barriers{SharedAddress(shared) + p.barriers_at,
                                p.x_stages};
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = threadIdx.x % 32;
  if (warp < kMidWarps) {
    TakeRegisters<kComputeRegisters>();
    BarrierOf(0, kMidThreads);
    Compute<F, X, T>(p, shared, barriers, warp / 4);
    return;
  }
  GiveRegisters<kHelpRegisters>();
  const int helper = warp - kMidWarps;
  // A helper initialises its own barriers and shows them to the others.
  if (helper == 0 && lane == 0) {
    PrefetchTensorMap(&x_map);
#pragma unroll 1
    for (int i = 0; i < p.x_stages; ++i) {
      BarrierInit(barriers.XFull(i), 1);
      BarrierInit(barriers.XEmpty(i), kMidWarps);
    }
    FenceBarrierInit();
  }
  if (helper == 1 && lane == 0) {
#pragma unroll 1
    for (int i = 0; i < 2 * kMidWarpgroups * T::kDepth; ++i) {
      BarrierInit(barriers.WFull(0, i), 4);
    }
    FenceBarrierInit();
  }
  __syncwarp();
  BarrierArriveOf(0, kMidThreads);
  if (helper == 0) {
    WaitForDependency();
    LetDependentsStart();
    if (lane == 0) LoadX<F, T>(p, shared, &x_map, barriers);
  } else if (helper == 1) {
    if (lane < kMidWarps) LoadWeights<F, T>(p, shared, barriers, lane);
  }
#endif
}

}  // namespace nibble::kernels::cuda
