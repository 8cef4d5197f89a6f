// The W8A8 kernel: INT8 or FP8 times the same, for Hopper. Persistent CTAs walk
// over tiles of y; one warp brings x and W, k = 128 a step, into a ring of
// stages, one or two warpgroups multiply and store.
//
//   stage:  x [rows][128]  W [columns][128]   128-byte swizzled, as wgmma reads
//
// Sums of INT8 products and, for kE4m3Fast, of FP8 ones stay in the tensor
// cores' accumulators over all of k. For kE4m3 each step's sums begin at zero
// and are added in FP32, ascending; the two warpgroups share a tile there, so
// that one multiplies while the other adds.
//
// With kPingPong each warpgroup has a tile of its own and they take turns:
// while one stores, the other one has the tensor cores.
#pragma once

#include "kernels/cuda/linear/cluster.cuh"
#include "kernels/cuda/linear/w8a8_load.cuh"
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
        x_row + threadIdx.x % kW8WarpgroupThreads / 32 * 16 +
        threadIdx.x % 32 / 4;
    if (T::kPingPong && warpgroup == 1) cursor_.Skip(p.k_blocks);
  }

  // The sums of the part of the tile at `place`.
  __device__ __forceinline__ void Multiply(const W8Place& place,
                                           typename T::Sums& sums) {
    if constexpr (T::kPromoted) {
      MultiplyPromoted(place, sums);
    } else {
      MultiplyInPlace(sums);
    }
    if constexpr (T::kPingPong) cursor_.Skip(p_.k_blocks);
  }

 private:
  // Waits for a step's operands.
  __device__ __forceinline__ void WaitFull() const {
    BarrierWait(barriers_.Full(cursor_.stage), cursor_.parity);
  }
  // Gives a stage back, to all CTAs of the cluster: what one loads goes to all.
  __device__ __forceinline__ void Release(int stage) const {
    const int lane = threadIdx.x % 32;
    if (lane < p_.cluster) ArriveInCta(barriers_.Empty(stage), lane);
  }
  // Enqueues a step's products for a part of rows and one of columns.
  __device__ __forceinline__ void Enqueue(int row_part, int column_part,
                                          bool add,
                                          uint32_t (&sum)[T::kTiles][4]) const {
    constexpr int kStageStep = T::kShared.stage_bytes >> 4;
    constexpr int kRowStep = 64 * static_cast<int>(kW8BlockK) >> 4;
    constexpr int kColumnStep =
        T::kTiles * 8 * static_cast<int>(kW8BlockK) >> 4;
    const uint64_t x = x_ + cursor_.stage * kStageStep + row_part * kRowStep;
    const uint64_t w =
        w_ + cursor_.stage * kStageStep + column_part * kColumnStep;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Wgmma8<T::kKind>(sum, x + i * kDescriptorStep, w + i * kDescriptorStep,
                       add || i > 0);
    }
  }

  __device__ __forceinline__ void MultiplyInPlace(typename T::Sums& sums) {
    static_assert(T::kColumnParts == 1);
    if constexpr (T::kPingPong) {
      // Until the other warpgroup has seen its last step, the parity of a full
      // stage could be that of a round before.
      if (warpgroup_ == 1 || turn_ > 0) {
        BarrierWait(barriers_.Turn(warpgroup_), (turn_ + warpgroup_ + 1) & 1);
      }
      ++turn_;
    }
    int before = 0;
#pragma unroll 1
    for (int block = 0; block < p_.k_blocks; ++block) {
      WaitFull();
      if constexpr (T::kPingPong) {
        if (block + 1 == p_.k_blocks &&
            threadIdx.x % kW8WarpgroupThreads == 0) {
          BarrierArrive(barriers_.Turn(1 - warpgroup_));
        }
      }
      WgmmaFence();
#pragma unroll
      for (int i = 0; i < T::kRowParts; ++i) {
        Enqueue(i, 0, block > 0, sums[i][0]);
      }
      WgmmaCommit();
      WgmmaWait<1>();
      if (block > 0) Release(before);
      before = cursor_.stage;
      cursor_.Next();
    }
    WgmmaWait<0>();
#pragma unroll
    for (int i = 0; i < T::kRowParts; ++i) HoldAccumulators(sums[i][0]);
    Release(before);
  }

  __device__ __forceinline__ void MultiplyPromoted(const W8Place& place,
                                                   typename T::Sums& sums) {
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
    const float* w_scales[T::kColumnParts];
    if constexpr (T::kBlockScales) {
      const int part0 = place.column + PartColumn();
#pragma unroll
      for (int j = 0; j < T::kColumnParts; ++j) {
        // Beyond the last columns of W the scale of the last ones will do.
        const int64_t column = min(part0 + j * T::kTiles * 8, p_.n - 1);
        w_scales[j] = p_.w_scales + column / kW8BlockN * p_.k_blocks;
      }
    }
#pragma unroll 1
    for (int block = 0; block < p_.k_blocks; ++block) {
      float w_scale[T::kColumnParts];
      if constexpr (T::kBlockScales) {
#pragma unroll
        for (int j = 0; j < T::kColumnParts; ++j) {
          w_scale[j] = __ldg(w_scales[j] + block);
        }
      }
      WaitFull();
#pragma unroll
      for (int i = 0; i < T::kRowParts; ++i) {
        float x_scale[2];
        if constexpr (T::kBlockScales) {
          const float* at = scales_ + cursor_.stage * T::kTile.rows + i * 64;
          x_scale[0] = at[0];
          x_scale[1] = at[8];
        }
#pragma unroll
        for (int j = 0; j < T::kColumnParts; ++j) {
          uint32_t step[T::kTiles][4];
          HoldAccumulators(step);
          WgmmaFence();
          Enqueue(i, j, false, step);
          WgmmaCommit();
          WgmmaWait<0>();
          HoldAccumulators(step);
          if (i + 1 == T::kRowParts && j + 1 == T::kColumnParts) {
            if constexpr (T::kBlockScales) __syncwarp();
            Release(cursor_.stage);
          }
          float scale[2];
          if constexpr (T::kBlockScales) {
            scale[0] = __fmul_rn(x_scale[0], w_scale[j]);
            scale[1] = __fmul_rn(x_scale[1], w_scale[j]);
          }
#pragma unroll
          for (int tile = 0; tile < T::kTiles; ++tile) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const float number = __uint_as_float(step[tile][e]);
              float& sum = sums[i][j][tile][e];
              if constexpr (T::kBlockScales) {
                sum = __fmaf_rn(number, scale[e / 2], sum);
              } else {
                sum = __fadd_rn(sum, number);
              }
            }
          }
        }
      }
      cursor_.Next();
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
  int turn_ = 0;  // tiles begun
  uint64_t x_, w_;
  const float* scales_;  // of x, of the thread's first row, stage 0
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
  W8Multiplier<T> multiplier(p, shared, barriers, warpgroup);
  const int step = T::kPingPong ? 2 * W8ItemStep(p) : W8ItemStep(p);
  int item = W8FirstItem(p);
  if (T::kPingPong && warpgroup == 1) item += W8ItemStep(p);
#pragma unroll 1
  for (; item < p.row_items * p.column_items; item += step) {
    const W8Place place = PlaceW8(p, T::kTile, item, rank);
    // Others may still be reading those of the tile before.
    BarrierOf(barrier, kW8WarpgroupThreads);
    vectors.Fetch(p, place.column + column0);
    const W8Rows<T> rows(p, place.row + row0);
    typename T::Sums sums;
    multiplier.Multiply(place, sums);
    WaitCopies<0>();
    BarrierOf(barrier, kW8WarpgroupThreads);
    if constexpr (T::kKind == W8Kind::kInt8) {
      if (p.x_zeros != nullptr) SubtractZeros<T>(p, rows, vectors, sums);
    }
    StorePart<T>(p, rows, vectors, place.column + column0, sums);
  }
}

template <typename T>
__global__ void __launch_bounds__(T::kThreads, 1)
    W8a8(const __grid_constant__ CUtensorMap x_map,
         const __grid_constant__ CUtensorMap w_map,
         const __grid_constant__ W8Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char shared[];
  const W8Barriers<T> barriers{SharedAddress(shared) + T::kShared.barriers_at};
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int rank = CtaRank();
  if (threadIdx.x == 0) {
    PrefetchTensorMap(&x_map);
    PrefetchTensorMap(&w_map);
#pragma unroll 1
    for (int i = 0; i < T::kStages; ++i) {
      BarrierInit(barriers.Full(i), 1);
      BarrierInit(barriers.Empty(i), T::kReaders * p.cluster);
    }
    BarrierInit(barriers.Turn(0), 1);
    BarrierInit(barriers.Turn(1), 1);
    FenceBarrierInit();
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
    if (warp == 4 * T::kWarpgroups && threadIdx.x % 32 == 0) {
      LoadSteps<T>(p, shared, &x_map, &w_map, barriers, rank);
    }
    __syncwarp();
  }
  // Others may still send to this CTA, or wait for what it gives back.
  if (p.cluster > 1) {
    ClusterArrive();
    ClusterWait();
  }
#endif
}

}  // namespace nibble::kernels::cuda
