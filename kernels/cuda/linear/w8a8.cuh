// The W8A8 kernel: INT8 or FP8 times the same, for Hopper. Persistent CTAs walk
// over tiles of y; two warps bring x and W, k = 128 a step, into a ring of
// stages, one or two warpgroups multiply and store.
//
//   stage:  x [rows][128]  W [columns][128]   128-byte swizzled, as wgmma reads
//
// Sums of INT8 products and, for kE4m3Fast, of FP8 ones stay in the tensor
// cores' accumulators over all of k. For the other kinds each step's sums begin
// at zero and are added in FP32, ascending; the two warpgroups share a tile
// there, so that one multiplies while the other adds.
//
// With kPingPong each warpgroup has a tile of its own and they take turns:
// while one stores, the other one has the tensor cores. Where they share a
// tile, its results are stored under the first steps of the next one (W8Held).
#pragma once

#include "kernels/cuda/linear/cluster.cuh"
#include "kernels/cuda/linear/w8a8_load.cuh"
#include "kernels/cuda/linear/w8a8_silu_mul.cuh"
#include "kernels/cuda/linear/w8a8_store.cuh"
#include "kernels/cuda/linear/wgmma_8bit.cuh"

namespace nibble::kernels::cuda {

// A warpgroup that computes: its operands, and the barriers it keeps. By value.
template <typename T>
class W8Multiplier {
 public:
  __device__ __forceinline__ W8Multiplier(const W8Params& p,
                                          char* shared_memory,
                                          const W8Barriers<T>& barriers,
                                          int warpgroup)
      : p_(p), barriers_(barriers), warpgroup_(warpgroup) {
    constexpr int kStep = static_cast<int>(kW8BlockK);
    constexpr W8Schedule kSchedule = T::kTile.schedule;
    const int x_row =
        kSchedule == W8Schedule::kRows ? warpgroup * T::kTile.PartRows() : 0;
    const int w_row = kSchedule == W8Schedule::kColumns
                          ? warpgroup * T::kTile.PartColumns()
                          : 0;
    const uint32_t shared = SharedAddress(shared_memory);
    x_ = SwizzledOperand(shared + x_row * kStep);
    w_ = SwizzledOperand(shared + T::kXBytes + w_row * kStep);
    scales_ =
        reinterpret_cast<const float*>(shared_memory + T::kShared.scales_at) +
        (T::kGroupScales ? w_row + static_cast<int>(threadIdx.x) % 4 * 8
                         : x_row + threadIdx.x % kW8WarpgroupThreads / 32 * 16 +
                               threadIdx.x % 32 / 4);
    const int lane = threadIdx.x % 32;
    tells_ = lane < p.cluster;
    empty_ = InCta(barriers.Empty(0), tells_ ? lane : 0);
    if (T::kPingPong && warpgroup == 1) cursor_.Skip(p.k_blocks);
  }

  // Asks for the scales of W of 32 steps from `block` on, one a lane, of the
  // tile at `place`; kE4m3Block. Those of a tile's first steps before Multiply.
  __device__ __forceinline__ void FetchWScales(const W8Place& place,
                                               int block) {
    if constexpr (T::kBlockScales) {
      const int step =
          min(block + static_cast<int>(threadIdx.x) % 32, p_.k_blocks - 1);
#pragma unroll
      for (int j = 0; j < T::kColumnParts; ++j) {
        // Beyond the last columns of W the scales of the last ones will do.
        const int column =
            min(place.column + PartColumn() + j * T::kTiles * 8, p_.n - 1);
        const int row = column / static_cast<int>(kW8BlockN);
        w_scales_[j] = __ldg(p_.w_scales + int64_t{row} * p_.k_blocks + step);
      }
    }
  }

  // The sums of the part of the tile at `place`. Calls `prepare` once and
  // stores what is held, where T::kHolds under the first steps' products.
  template <typename Prepare>
  __device__ __forceinline__ void Multiply(const W8Place& place,
                                           const Prepare& prepare,
                                           W8Held<T>& held,
                                           typename T::Sums& sums) {
    if constexpr (T::kPromoted) {
      MultiplyPromoted(place, prepare, held, sums);
    } else {
      MultiplyInPlace(prepare, held, sums);
    }
    if constexpr (T::kPingPong) cursor_.Skip(p_.k_blocks);
  }

 private:
  // Waits for a step's operands.
  __device__ __forceinline__ void WaitFull() const {
    BarrierWait(barriers_.Full(cursor_.stage), cursor_.parity);
  }
  // Gives a stage back, to all CTAs of the cluster: what one loads goes to all.
  // Each is told by a lane of its own.
  __device__ __forceinline__ void Release(int stage) const {
    if (tells_) ArriveAt(empty_ + stage * 8);
  }
  // Enqueues a step's products for a part of rows and one of columns.
  __device__ __forceinline__ void Enqueue(int row_part, int column_part,
                                          int stage, bool add,
                                          uint32_t (&sum)[T::kTiles][4]) const {
    constexpr int kStageStep = T::kShared.stage_bytes >> 4;
    constexpr int kRowStep = 64 * static_cast<int>(kW8BlockK) >> 4;
    constexpr int kColumnStep =
        T::kTiles * 8 * static_cast<int>(kW8BlockK) >> 4;
    const uint64_t x = x_ + stage * kStageStep + row_part * kRowStep;
    const uint64_t w = w_ + stage * kStageStep + column_part * kColumnStep;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Wgmma8<T::kKind>(sum, x + i * kDescriptorStep, w + i * kDescriptorStep,
                       add || i > 0);
    }
  }

  template <typename Prepare>
  __device__ __forceinline__ void MultiplyInPlace(const Prepare& prepare,
                                                  W8Held<T>& held,
                                                  typename T::Sums& sums) {
    static_assert(T::kColumnParts == 1);
    if constexpr (!T::kHolds) prepare();
    if constexpr (T::kPingPong) {
      // Until the other warpgroup has seen its last step, the parity of a full
      // stage could be that of a round before.
      if (warpgroup_ == 1 || turn_ > 0) {
        BarrierWait(barriers_.Turn(warpgroup_), (turn_ + warpgroup_ + 1) & 1);
      }
      ++turn_;
    }
    int before = cursor_.stage;
    const auto step = [&](int block) {
      const int stage = cursor_.stage;
      EnqueueStep(block, sums);
      WgmmaWait<1>();
      Release(before);
      before = stage;
    };
    int block = 1;
    if constexpr (T::kHolds) {
      // Memory takes stores at a rate of its own: all at once would hold up the
      // next products.
      const bool spread = p_.k_blocks > T::kHeldSteps;
      if (!spread) held.Store(p_);
      EnqueueStep(0, sums);
      prepare();
      if (spread) {
        Unrolled<T::kHeldSteps>([&](auto number) {
          held.template Store<decltype(number)::value, T::kHeldSteps>(p_);
          step(decltype(number)::value + 1);
        });
        block = T::kHeldSteps + 1;
      }
    } else {
      EnqueueStep(0, sums);
    }
#pragma unroll 1
    for (; block < p_.k_blocks; ++block) step(block);
    WgmmaWait<0>();
#pragma unroll
    for (int i = 0; i < T::kRowParts; ++i) HoldAccumulators(sums[i][0]);
    Release(before);
  }

  // Enqueues a step's products for the whole part; sums begin with step 0.
  __device__ __forceinline__ void EnqueueStep(int block,
                                              typename T::Sums& sums) {
    WaitFull();
    if constexpr (T::kPingPong) {
      if (block + 1 == p_.k_blocks && threadIdx.x % kW8WarpgroupThreads == 0) {
        BarrierArrive(barriers_.Turn(1 - warpgroup_));
      }
    }
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < T::kRowParts; ++i) {
      Enqueue(i, 0, cursor_.stage, block > 0, sums[i][0]);
    }
    WgmmaCommit();
    cursor_.Next();
  }

  template <typename Prepare>
  __device__ __forceinline__ void MultiplyPromoted(const W8Place& place,
                                                   const Prepare& prepare,
                                                   W8Held<T>& held,
                                                   typename T::Sums& sums) {
    if constexpr (!T::kHolds) prepare();
#pragma unroll
    for (int i = 0; i < T::kRowParts; ++i) {
#pragma unroll
      for (int j = 0; j < T::kColumnParts; ++j) {
#pragma unroll
        for (int tile = 0; tile < T::kTiles; ++tile) {
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[i][j][tile][e] = 0;
        }
      }
    }
    int block = 0;
    if constexpr (T::kHolds) AddFirst(block, prepare, held, sums);
    AddAll<T::kStraight>(place, block, sums);
    if constexpr (T::kStraight > T::kTogether) {
      AddAll<T::kTogether>(place, block, sums);
    }
    if constexpr (T::kTogether > 1) AddAll<1>(place, block, sums);
  }

  // Adds the products of the first steps of a tile, during which results of the
  // one before are stored.
  template <typename Prepare>
  __device__ __forceinline__ void AddFirst(int& block, const Prepare& prepare,
                                           W8Held<T>& held,
                                           typename T::Sums& sums) {
    const auto meanwhile = [&] {
      held.template Store<0, T::kHeldParts>(p_);
      prepare();
    };
    if constexpr (T::kTogether == 1) {
      AddWholeStep(meanwhile, sums);
      block = 1;
    } else if (p_.k_blocks < T::kStraight) {
      AddSteps<1>(0, meanwhile, sums);
      block = 1;
    } else {
      AddSteps<T::kStraight>(0, meanwhile, sums);
      block = T::kStraight;
    }
    if constexpr (T::kHeldParts == 2) {
      // What is left under the parts of the next step.
      const auto store = [&](auto part) {
        held.template Store<2 + decltype(part)::value, 4>(p_);
      };
      if (block < p_.k_blocks) {
        AddStep(block++, store, sums);
      } else {
        Unrolled<2>(store);
      }
    }
  }

  // Adds the products of steps from `block` on, kSteps at a time, as far as
  // they go.
  template <int kSteps>
  __device__ __forceinline__ void AddAll(const W8Place& place, int& block,
                                         typename T::Sums& sums) {
#pragma unroll 1
    for (; block + kSteps <= p_.k_blocks; block += kSteps) {
      if (block > 0 && block % 32 == 0) FetchWScales(place, block);
      if constexpr (T::kTogether > 1) {
        AddSteps<kSteps>(
            block, [] {}, sums);
      } else {
        AddStep(
            block, [](auto /*part*/) {}, sums);
      }
    }
  }

  // Adds the products of kSteps steps, T::kTogether of them under way at once.
  // Straight on, so that ptxas sees which accumulators are in flight: otherwise
  // it would wait for each wgmma. Calls `meanwhile` when the first ones are.
  template <int kSteps, typename Meanwhile>
  __device__ __forceinline__ void AddSteps(int block,
                                           const Meanwhile& meanwhile,
                                           typename T::Sums& sums) {
    static_assert(T::kRowParts == 1 && T::kColumnParts == 1);
    constexpr int kBuffers = kSteps < T::kTogether ? kSteps : T::kTogether;
    uint32_t step[kBuffers][T::kTiles][4];
    int stages[kBuffers], slots[kBuffers];
    float scales[kBuffers][2];
    const auto begin = [&](auto number) {
      constexpr int i = decltype(number)::value % kBuffers;
      stages[i] = cursor_.stage;
      slots[i] = W8ScalesSlot<T>(cursor_.stage, cursor_.parity);
      WaitFull();
      ReadXScales(stages[i], 0, scales[i]);
      HoldAccumulators(step[i]);
      WgmmaFence();
      Enqueue(0, 0, stages[i], false, step[i]);
      WgmmaCommit();
      ScaleBy(WScale(0, block + decltype(number)::value), scales[i]);
      cursor_.Next();
      if constexpr (decltype(number)::value == 0) meanwhile();
    };
    Unrolled<kBuffers>(begin);
    Unrolled<kSteps>([&](auto number) {
      constexpr int kNumber = decltype(number)::value;
      constexpr int i = kNumber % kBuffers;
      constexpr int kLeft = kSteps - 1 - kNumber;
      WgmmaWait<(kLeft < kBuffers - 1 ? kLeft : kBuffers - 1)>();
      HoldAccumulators(step[i]);
      ReleaseRead(stages[i]);
      AddStepSums(step[i], scales[i], slots[i], 0, sums[0][0]);
      if constexpr (kLeft >= kBuffers) {
        begin(std::integral_constant<int, kNumber + kBuffers>{});
      }
    });
  }

  // Adds the products of one step, a part after the other; calls `meanwhile`
  // with the number of each part (std::integral_constant) when it is under way.
  template <typename Meanwhile>
  __device__ __forceinline__ void AddStep(int block, const Meanwhile& meanwhile,
                                          typename T::Sums& sums) {
    const int stage = cursor_.stage;
    const int slot = W8ScalesSlot<T>(cursor_.stage, cursor_.parity);
    WaitFull();
    Unrolled<T::kRowParts * T::kColumnParts>([&](auto number) {
      constexpr int i = decltype(number)::value / T::kColumnParts;
      constexpr int j = decltype(number)::value % T::kColumnParts;
      uint32_t step[T::kTiles][4];
      float scales[2];
      ReadXScales(stage, i, scales);
      HoldAccumulators(step);
      WgmmaFence();
      Enqueue(i, j, stage, false, step);
      WgmmaCommit();
      ScaleBy(WScale(j, block), scales);
      meanwhile(number);
      WgmmaWait<0>();
      HoldAccumulators(step);
      if (i + 1 == T::kRowParts && j + 1 == T::kColumnParts) ReleaseRead(stage);
      AddStepSums(step, scales, slot, j, sums[i][j]);
    });
    cursor_.Next();
  }

  // Adds the products of step 0 to sums of zero, all parts under way at once;
  // calls `meanwhile` when they are.
  template <typename Meanwhile>
  __device__ __forceinline__ void AddWholeStep(const Meanwhile& meanwhile,
                                               typename T::Sums& sums) {
    const int stage = cursor_.stage;
    const int slot = W8ScalesSlot<T>(cursor_.stage, cursor_.parity);
    uint32_t step[T::kRowParts][T::kColumnParts][T::kTiles][4];
    float scales[T::kRowParts][T::kColumnParts][2];
    WaitFull();
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < T::kRowParts; ++i) {
#pragma unroll
      for (int j = 0; j < T::kColumnParts; ++j) {
        ReadXScales(stage, i, scales[i][j]);
        Enqueue(i, j, stage, false, step[i][j]);
        ScaleBy(WScale(j, 0), scales[i][j]);
      }
    }
    WgmmaCommit();
    meanwhile();
    WgmmaWait<0>();
    ReleaseRead(stage);
#pragma unroll
    for (int i = 0; i < T::kRowParts; ++i) {
#pragma unroll
      for (int j = 0; j < T::kColumnParts; ++j) {
        HoldAccumulators(step[i][j]);
        AddStepSums(step[i][j], scales[i][j], slot, j, sums[i][j]);
      }
    }
    cursor_.Next();
  }

  // The scale of a step's block of W; kE4m3Block.
  __device__ __forceinline__ float WScale(int column_part, int block) const {
    if constexpr (T::kBlockScales) {
      return __shfl_sync(~0u, w_scales_[column_part], block % 32);
    }
    return 1;
  }
  // The scales of a thread's rows, eight apart, of x; kE4m3Block.
  __device__ __forceinline__ void ReadXScales(int stage, int row_part,
                                              float (&scales)[2]) const {
    if constexpr (T::kBlockScales) {
      const float* at = scales_ + stage * T::kTile.rows + row_part * 64;
      scales[0] = at[0];
      scales[1] = at[8];
    }
  }
  __device__ __forceinline__ static void ScaleBy(float w_scale,
                                                 float (&scales)[2]) {
    if constexpr (T::kBlockScales) {
      scales[0] = __fmul_rn(scales[0], w_scale);
      scales[1] = __fmul_rn(scales[1], w_scale);
    }
  }
  // After the stage's scales have been read as well; those of groups, of the
  // step before.
  __device__ __forceinline__ void ReleaseRead(int stage) const {
    if constexpr (T::kStepScales) __syncwarp();
    Release(stage);
  }
  // Adds a step's sums of a part, scaled as the kind wants it.
  __device__ __forceinline__ void AddStepSums(
      const uint32_t (&step)[T::kTiles][4], const float (&scales)[2], int slot,
      int column_part, float (&sum)[T::kTiles][4]) const {
    if constexpr (T::kGroupScales) {
      AddGroups(step, slot, column_part, sum);
    } else {
      Add(step, scales, sum);
    }
  }
  __device__ __forceinline__ void Add(const uint32_t (&step)[T::kTiles][4],
                                      const float (&scales)[2],
                                      float (&sum)[T::kTiles][4]) const {
#pragma unroll
    for (int tile = 0; tile < T::kTiles; ++tile) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float number = __uint_as_float(step[tile][e]);
        sum[tile][e] = T::kBlockScales
                           ? __fmaf_rn(number, scales[e / 2], sum[tile][e])
                           : __fadd_rn(sum[tile][e], number);
      }
    }
  }

  // The same for kInt8Group, each column by its scale of W.
  __device__ __forceinline__ void AddGroups(
      const uint32_t (&step)[T::kTiles][4], int slot, int column_part,
      float (&sum)[T::kTiles][4]) const {
    const float* const at =
        scales_ + slot * T::kTile.columns + column_part * T::kTiles * 8;
#pragma unroll
    for (int pair = 0; pair < T::kTiles / 2; ++pair) {
      float scales[4];
      LoadFour(at + pair / 2 * 32 + pair % 2 * 4, scales);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int tile = 2 * pair + i / 4, e = i % 4;
        sum[tile][e] =
            __fmaf_rn(__int2float_rn(static_cast<int>(step[tile][e])),
                      scales[i / 4 * 2 + e % 2], sum[tile][e]);
      }
    }
  }

  __device__ __forceinline__ int PartColumn() const {
    return T::kTile.schedule == W8Schedule::kColumns
               ? warpgroup_ * T::kTile.PartColumns()
               : 0;
  }

  const W8Params& p_;
  const W8Barriers<T>& barriers_;
  const int warpgroup_;
  W8Cursor<T> cursor_;
  int turn_ = 0;    // tiles begun
  bool tells_;      // whether this lane tells a CTA of stages given back
  uint32_t empty_;  // the barrier of that CTA's stage 0
  uint64_t x_, w_;
  // Of x, of the thread's first row, or of W, of its first column; stage 0.
  const float* scales_;
  float w_scales_[T::kColumnParts];  // kE4m3Block: a step's in each lane
};

// A warpgroup's work, from the first tile to the last.
template <typename T>
__device__ __forceinline__ void Compute(const W8Params& p, char* shared,
                                        const W8Barriers<T>& barriers,
                                        int warpgroup, int rank) {
  constexpr W8Schedule kSchedule = T::kTile.schedule;
  const int row0 =
      kSchedule == W8Schedule::kRows ? warpgroup * T::kTile.PartRows() : 0;
  const int column0 = kSchedule == W8Schedule::kColumns
                          ? warpgroup * T::kTile.PartColumns()
                          : 0;
  const int barrier = kW8WarpgroupBarrier + warpgroup;
  const W8Vectors<T> vectors(shared, warpgroup);
  W8Held<T> held;
  if constexpr (T::kHolds) held.Clear();
  W8Multiplier<T> multiplier(p, shared, barriers, warpgroup);
  const int step = T::kPingPong ? 2 * W8ItemStep(p) : W8ItemStep(p);
  int item = W8FirstItem(p);
  if (T::kPingPong && warpgroup == 1) item += W8ItemStep(p);
  multiplier.FetchWScales(PlaceW8(p, T::kTile, item, rank), 0);
#pragma unroll 1
  for (; item < p.row_items * p.column_items; item += step) {
    const W8Place place = PlaceW8(p, T::kTile, item, rank);
    W8Rows<T> rows;
    typename T::Sums sums;
    multiplier.Multiply(
        place,
        [&] {
          // Others may still be reading those of the tile before.
          BarrierOf(barrier, kW8WarpgroupThreads);
          vectors.Fetch(p, place.column + column0);
          rows.Fetch(p, place.row + row0);
        },
        held, sums);
    WaitCopies<0>();
    BarrierOf(barrier, kW8WarpgroupThreads);
    if constexpr (T::kKind == W8Kind::kInt8 || T::kGroupScales) {
      if (p.x_zeros != nullptr) SubtractZeros<T>(p, rows, vectors, sums);
    }
    // Those of the next tile come while this one is stored.
    multiplier.FetchWScales(PlaceW8(p, T::kTile, item + step, rank), 0);
    const int column = place.column + column0;
    if constexpr (T::kSiluMul) {
      StoreSiluMul<T>(p, rows, vectors, column, sums);
    } else if (T::kHolds && IsPlain<T>(p, column)) {
      HoldPart<T>(p, rows, vectors, column, sums, held);
    } else {
      StorePart<T>(p, rows, vectors, column, sums);
      if constexpr (T::kHolds) held.Clear();
    }
  }
  if constexpr (T::kHolds) held.Store(p);
}

template <typename T>
__global__ void __launch_bounds__(T::kThreads, 1)
    W8a8(const __grid_constant__ W8Params p,
         const __grid_constant__ CUtensorMap x_map,
         const __grid_constant__ CUtensorMap w_map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char shared[];
  const W8Barriers<T> barriers{SharedAddress(shared) + T::kShared.barriers_at};
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int rank = CtaRank();
  // A lane a barrier: one after the other takes as long as a load.
  static_assert(T::kStages <= 32);
  if (threadIdx.x < T::kStages) {
    BarrierInit(barriers.Full(threadIdx.x), 1);
    BarrierInit(barriers.Empty(threadIdx.x), T::kReaders * p.cluster);
    if (threadIdx.x < 2) BarrierInit(barriers.Turn(threadIdx.x), 1);
    FenceBarrierInit();
  } else if (threadIdx.x == 32) {
    PrefetchTensorMap(&x_map);
    PrefetchTensorMap(&w_map);
  }
  __syncthreads();
  if (p.cluster > 1) {
    ClusterArriveRelaxed();
    ClusterWait();
  }
  LetDependentsStart();
  if (warp < 4 * T::kWarpgroups) {
    if constexpr (T::kWarpgroups > 1) TakeRegisters<T::kComputeRegisters>();
    WaitForDependency();
    Compute<T>(p, shared, barriers, warp / 4, rank);
  } else {
    if constexpr (T::kWarpgroups > 1) GiveRegisters<T::kLoadRegisters>();
    const uint32_t at = SharedAddress(shared);
    if (warp == 4 * T::kWarpgroups) {
      LoadW<T>({p, at, &w_map, barriers, rank});
    } else if (warp == 4 * T::kWarpgroups + 1) {
      LoadX<T>({p, at, &x_map, barriers, rank});
    }
  }
  // Others may still send to this CTA, or wait for what it gives back.
  if (p.cluster > 1) {
    ClusterArrive();
    ClusterWait();
  }
#endif
}

}  // namespace nibble::kernels::cuda
