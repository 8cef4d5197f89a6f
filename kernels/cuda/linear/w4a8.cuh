// The W4A8 kernel: 4-bit weights times 8-bit activations, for Hopper. Weights
// become the 8-bit A operand of wgmma in registers, x is its B operand from
// shared memory. Persistent CTAs walk over tiles of y; a warpgroup brings x and
// packed weights, k = 128 a stage, two unpack, multiply and store 64 rows of W
// each.
//
//   stage:  x [columns][128], 128-byte swizzled     W: two blocks
//   (w4a8_layout.h)
//
// Each warpgroup has one or two steps (k = 32) of products under way and
// unpacks the next meanwhile. Where scales are those of groups, integer sums
// are drained into FP32 ones, y += f * sum. Where there are minimums, y starts
// at a row's offset and at minimums times sums of x, products of BF16 numbers;
// sums are not negative then, and are read as FP32 numbers where they stand
// (w4a8_layout.h).
#pragma once

#include "kernels/cuda/linear/w4a8_store.cuh"
#include "kernels/cuda/linear/w4a8_unpack.cuh"
#include "kernels/cuda/linear/w8a8_load.cuh"

namespace nibble::kernels::cuda {

// A warpgroup that computes: where its operands are, and where it stands. By
// value.
template <typename T>
class W4a8Multiplier {
 public:
  __device__ __forceinline__ W4a8Multiplier(const W4a8Params& p,
                                            uint32_t shared,
                                            const W8Barriers<T>& barriers,
                                            int warpgroup)
      : p_(p),
        barriers_(barriers),
        x_(SwizzledOperand(shared)),
        w_(shared + T::kShared.w_at + warpgroup * T::kFormat.BlockBytes()) {}

  // Integer sums over all of k; kChain.
  __device__ __forceinline__ void Chain(uint32_t (&sums)[T::kTiles][4]) {
    static_assert(T::kChain);
    Begin();
    int before = 0;
#pragma unroll 1
    for (int pair = 0; pair < p_.k_pairs; ++pair) {
      const bool more = pair + 1 < p_.k_pairs;
      Unrolled<T::kPairSteps>([&](auto number) {
        constexpr int kStep = decltype(number)::value;
        // The stage before has been multiplied.
        constexpr bool kReleases = kStep % kStageSteps == T::kInFlight - 1;
        Hold<kStep>();
        WgmmaFence();
        WgmmaPacked<T::kCodes>(sums, a_[kStep % T::kBuffers][0],
                               Operand<kStep>(), pair > 0 || kStep > 0);
        WgmmaCommit();
        WgmmaWait<T::kInFlight>();
        if (kReleases && (pair > 0 || kStep >= kStageSteps)) Release(before);
        if constexpr (kStep % kStageSteps == kStageSteps - 1) before = stage_;
        UnpackNext<kStep>(more);
      });
    }
    WgmmaWait<0>();
    HoldAccumulators(sums);
    Release(before);
  }

  // FP32 sums of groups times their scales, of minimums, and of where a
  // thread's two rows begin.
  __device__ __forceinline__ void Drain(const float (&offsets)[2],
                                        float (&y)[T::kTiles][4]) {
    static_assert(!T::kChain);
#pragma unroll
    for (int i = 0; i < T::kTiles; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) y[i][e] = offsets[e / 2];
    }
    HoldAccumulators(y);
    if constexpr (T::kFormat.HasMinimums()) AddMinimums(y);
    Begin();
    uint32_t acc[T::kAccs][T::kTiles][4];
    if constexpr (T::kDrainsUnder) {
      // There is nothing to drain under the first group's products.
#pragma unroll
      for (int i = 0; i < T::kTiles; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) acc[1][i][e] = 0;
      }
      scales_[1][0] = scales_[1][1] = 0;
    }
#pragma unroll 1
    for (int pair = 0; pair < p_.k_pairs; ++pair) {
      const bool more = pair + 1 < p_.k_pairs;
      if constexpr (T::kKind == W4a8Kind::kSubScale) {
        DrainPair(acc, y, more);
      } else if constexpr (T::kDrainsUnder) {
        DrainUnder(acc, y, more);
      } else {
        DrainSums(acc[0], y, more);
      }
    }
    if constexpr (T::kDrainsUnder) {
      Add<0, T::kTiles>(acc[1], scales_[1], y);
    }
  }

 private:
  static constexpr int kStageSteps = kW4a8StageK / 32;

  __device__ __forceinline__ void WaitFull() const {
    BarrierWait(barriers_.Full(cursor_.stage), cursor_.parity);
  }
  // Gives a stage back, one lane for its warp.
  __device__ __forceinline__ void Release(int stage) const {
    if (threadIdx.x % 32 == 0) BarrierArrive(barriers_.Empty(stage));
  }
  __device__ __forceinline__ uint32_t Block(int stage) const {
    return w_ + stage * T::kWBytes;
  }
  // x of a step of the stage that is being multiplied.
  template <int kStep>
  __device__ __forceinline__ uint64_t Operand() const {
    return x_ + stage_ * (T::kXBytes >> 4) +
           kStep % kStageSteps * kDescriptorStep;
  }
  // The step's operands are made before the fence, not between products.
  template <int kStep>
  __device__ __forceinline__ void Hold() {
#pragma unroll
    for (int part = 0; part < T::kParts; ++part) {
      HoldOperand(a_[kStep % T::kBuffers][part]);
    }
  }

  // Takes the next stage's codes and scales to registers.
  __device__ __forceinline__ void TakeStage(bool there) {
    if (there) WaitFull();
    words_.LoadCodes(Block(cursor_.stage));
    words_.LoadScales(Block(cursor_.stage));
  }
  // The first stage of a tile, and its first step's operands.
  __device__ __forceinline__ void Begin() {
    TakeStage(true);
    Unpack(words_, 0, a_[0]);
    stage_ = cursor_.stage;
    cursor_.Next();
  }
  // The operands of the step after kStep of the pair, while that one is being
  // multiplied and the one before it has been; `more`: there is a next pair.
  template <int kStep>
  __device__ __forceinline__ void UnpackNext(bool more) {
    constexpr int kNext = (kStep + 1) % kStageSteps;
    if constexpr (kNext == 0) {
      const bool there = kStep + 1 < T::kPairSteps || more;
      TakeStage(there);
      stage_ = cursor_.stage;
      if (there) cursor_.Next();
    }
    Unpack(words_, kNext, a_[(kStep + 1) % T::kBuffers]);
  }

  // y += the product of minimums and sums of x.
  __device__ __forceinline__ void AddMinimums(float (&y)[T::kTiles][4]) {
#pragma unroll 1
    for (int i = 0; i < p_.min_stages; ++i) {
      WaitFull();
      words_.LoadCodes(Block(cursor_.stage));
      uint32_t a[kStageSteps][4];
#pragma unroll
      for (int step = 0; step < kStageSteps; ++step) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          a[step][e] = words_.codes[2 * step + e % 2];
        }
        HoldOperand(a[step]);
      }
      WgmmaFence();
#pragma unroll
      for (int step = 0; step < kStageSteps; ++step) {
        Wgmma<XType::kBF16>(
            y, a[step],
            x_ + cursor_.stage * (T::kXBytes >> 4) + step * kDescriptorStep,
            true);
      }
      WgmmaCommit();
      WgmmaWait<0>();
      HoldAccumulators(y);
      Release(cursor_.stage);
      cursor_.Next();
    }
  }

  // A sum as what its scale is multiplied with.
  static __device__ __forceinline__ float ToFloat(uint32_t sum) {
    if constexpr (T::kCodes == W4a8Codes::kS8 ||
                  T::kKind == W4a8Kind::kSubScaleSums) {
      return __int2float_rn(static_cast<int>(sum));
    } else {
      return __uint_as_float(sum);
    }
  }

  // y += sums times their rows' scales, of some eights of columns.
  template <int kBegin, int kEnd>
  __device__ __forceinline__ void Add(uint32_t (&sums)[T::kTiles][4],
                                      const float (&scales)[2],
                                      float (&y)[T::kTiles][4]) const {
#pragma unroll
    for (int i = kBegin; i < kEnd; ++i) {
      // Here and not earlier: ahead of the products that hide it.
      HoldOperand(sums[i]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        y[i][e] = __fmaf_rn(ToFloat(sums[i][e]), scales[e / 2], y[i][e]);
      }
    }
  }

  // The scales of a step's group, from the stage's words.
  template <int kInStage>
  __device__ __forceinline__ void TakeScales(float (&scales)[2]) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if constexpr (T::kKind == W4a8Kind::kSubScaleFloat) {
        scales[row] =
            __fmul_rn(__uint_as_float(words_.rows[row][1]),
                      __uint2float_rn(SubScale(words_, row, kInStage)));
      } else {
        scales[row] =
            __uint_as_float(words_.rows[row][kInStage / T::kGroupSteps]);
      }
    }
  }

  // A pair of stages, the sums of each of whose groups are drained under the
  // next one's products, a part under each step.
  __device__ __forceinline__ void DrainUnder(
      uint32_t (&acc)[T::kAccs][T::kTiles][4], float (&y)[T::kTiles][4],
      bool more) {
    int first = 0;
    Unrolled<T::kPairSteps>([&](auto number) {
      constexpr int kStep = decltype(number)::value;
      constexpr int kSums = kStep / T::kGroupSteps % 2;
      constexpr int kInGroup = kStep % T::kGroupSteps;
      constexpr int kShare = T::kTiles / T::kGroupSteps;
      Hold<kStep>();
      if constexpr (kInGroup == 0) HoldAccumulators(acc[kSums]);
      WgmmaFence();
      WgmmaPacked<T::kCodes>(acc[kSums], a_[kStep % T::kBuffers][0],
                             Operand<kStep>(), kInGroup > 0);
      WgmmaCommit();
      WgmmaWait<T::kInFlight>();
      if constexpr (kStep == kStageSteps) Release(first);
      Add<kInGroup * kShare, (kInGroup + 1) * kShare>(acc[1 - kSums],
                                                      scales_[1 - kSums], y);
      if constexpr (kInGroup == T::kGroupSteps - 1) {
        // Those of the group under way, which the next one drains.
        TakeScales<kStep % kStageSteps>(scales_[kSums]);
      }
      if constexpr (kStep == kStageSteps - 1) first = stage_;
      if constexpr (kStep == T::kPairSteps - 1) last_ = stage_;
      UnpackNext<kStep>(more);
    });
    // What is in flight where a loop turns, ptxas would wait for at once.
    WgmmaWait<0>();
    HoldAccumulators(acc[1]);
    Release(last_);
  }

  // A pair of stages, a super-block: sums of each step of k = 32, times their
  // sub-scales, are added up as integers.
  __device__ __forceinline__ void DrainSums(uint32_t (&acc)[T::kTiles][4],
                                            float (&y)[T::kTiles][4],
                                            bool more) {
    uint32_t sums[T::kTiles][4];
    float scales[2];
    Unrolled<T::kPairSteps>([&](auto number) {
      constexpr int kStep = decltype(number)::value;
      constexpr int kInStage = kStep % kStageSteps;
      Hold<kStep>();
      HoldAccumulators(acc);
      WgmmaFence();
      WgmmaPacked<T::kCodes>(acc, a_[kStep % T::kBuffers][0], Operand<kStep>(),
                             false);
      WgmmaCommit();
      uint32_t subs[2];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        subs[row] = SubScale(words_, row, kInStage);
        scales[row] = __uint_as_float(words_.rows[row][1]);
      }
      last_ = stage_;
      UnpackNext<kStep>(more);
      WgmmaWait<0>();
      HoldAccumulators(acc);
      if constexpr (kInStage == kStageSteps - 1) Release(last_);
#pragma unroll
      for (int i = 0; i < T::kTiles; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const uint32_t part = acc[i][e] * subs[e / 2];
          sums[i][e] = kStep == 0 ? part : sums[i][e] + part;
        }
      }
    });
    Add<0, T::kTiles>(sums, scales, y);
  }

  // A pair of stages, a super-block: sums of codes times the lower and the
  // upper part of their sub-scales.
  __device__ __forceinline__ void DrainPair(
      uint32_t (&acc)[T::kAccs][T::kTiles][4], float (&y)[T::kTiles][4],
      bool more) {
    constexpr float kUpperUnit = 8;
    float scales[2];
    int first = 0;
    HoldAccumulators(acc[0]);
    HoldAccumulators(acc[1]);
    Unrolled<T::kPairSteps>([&](auto number) {
      constexpr int kStep = decltype(number)::value;
      Hold<kStep>();
      WgmmaFence();
#pragma unroll
      for (int part = 0; part < T::kParts; ++part) {
        WgmmaPacked<T::kCodes>(acc[part], a_[kStep % T::kBuffers][part],
                               Operand<kStep>(), kStep > 0);
      }
      WgmmaCommit();
      WgmmaWait<T::kInFlight>();
      if constexpr (kStep == kStageSteps + T::kInFlight - 1) Release(first);
      if constexpr (kStep == kStageSteps - 1) first = stage_;
      if constexpr (kStep == T::kPairSteps - 1) {
        last_ = stage_;
        scales[0] = __uint_as_float(words_.rows[0][1]);
        scales[1] = __uint_as_float(words_.rows[1][1]);
      }
      UnpackNext<kStep>(more);
    });
    WgmmaWait<0>();
    HoldAccumulators(acc[0]);
    HoldAccumulators(acc[1]);
    Release(last_);
    const float upper[2] = {kUpperUnit * scales[0], kUpperUnit * scales[1]};
#pragma unroll
    for (int i = 0; i < T::kTiles; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        y[i][e] = __fmaf_rn(ToFloat(acc[0][i][e]), scales[e / 2], y[i][e]);
        y[i][e] = __fmaf_rn(ToFloat(acc[1][i][e]), upper[e / 2], y[i][e]);
      }
    }
  }

  const W4a8Params& p_;
  const W8Barriers<T>& barriers_;
  const uint64_t x_;
  const uint32_t w_;
  W8Cursor<T> cursor_;  // of the stage to take next
  int stage_ = 0;       // being multiplied
  int last_ = 0;        // the second of a pair
  W4a8Words<T> words_;
  uint32_t a_[T::kBuffers][T::kParts][4];  // of steps under way and the next
  float scales_[2][2];                     // kDrainsUnder: of a pair's groups
};

// A warpgroup's work, from the first tile to the last.
template <typename T>
__device__ __forceinline__ void Compute(const W4a8Params& p, char* shared,
                                        const W8Barriers<T>& barriers,
                                        int warpgroup) {
  const int barrier = kW8WarpgroupBarrier + warpgroup;
  const float* const x_scales =
      reinterpret_cast<const float*>(shared + T::kShared.x_scales_at) +
      warpgroup * T::kColumns;
  W4a8Multiplier<T> multiplier(p, SharedAddress(shared), barriers, warpgroup);
#pragma unroll 1
  for (int item = blockIdx.x; item < p.row_tiles * p.column_tiles;
       item += gridDim.x) {
    const W4a8Place place = PlaceW4a8(p, item);
    const int column0 = place.column_tile * T::kColumns;
    // Others may still be reading those of the tile before.
    BarrierOf(barrier, kW8WarpgroupThreads);
    FetchXScales<T>(p, column0, x_scales);
    const W4a8Rows<T> rows(
        p, place.row_tile * kW4a8TileRows + warpgroup * kW4a8BlockRows);
    std::conditional_t<T::kChain, uint32_t, float> sums[T::kTiles][4];
    if constexpr (T::kChain) {
      multiplier.Chain(sums);
    } else {
      multiplier.Drain(rows.offsets, sums);
    }
    WaitCopies<0>();
    BarrierOf(barrier, kW8WarpgroupThreads);
    StoreBlock<T>(p, rows, x_scales, column0, sums);
  }
}

template <typename T>
__global__ void __launch_bounds__(kW4a8Threads, 1)
    W4a8(const __grid_constant__ CUtensorMap x_map,
         const __grid_constant__ CUtensorMap sums_map,
         const __grid_constant__ W4a8Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kComputeWarps = 4 * kW4a8Warpgroups;
  constexpr int kComputeRegisters = 240, kLoadRegisters = 24;
  extern __shared__ __align__(1024) char shared[];
  const W8Barriers<T> barriers{SharedAddress(shared) + T::kShared.barriers_at};
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    PrefetchTensorMap(&x_map);
    if (T::kFormat.HasMinimums()) PrefetchTensorMap(&sums_map);
#pragma unroll 1
    for (int i = 0; i < T::kStages; ++i) {
      BarrierInit(barriers.Full(i), 1);
      BarrierInit(barriers.Empty(i), kComputeWarps);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  LetDependentsStart();
  if (warp < kComputeWarps) {
    TakeRegisters<kComputeRegisters>();
    WaitForDependency();
    Compute<T>(p, shared, barriers, warp / 4);
  } else {
    GiveRegisters<kLoadRegisters>();
    if (ElectLane()) {
      LoadStages<T>(p, shared, &x_map, &sums_map, barriers,
                    warp - kComputeWarps);
    }
  }
#endif
}

}  // namespace nibble::kernels::cuda
