// Prepares x for the W4A16 kernel for many rows: what products want of it,
// once for all tiles of W. Runs before that kernel's first product and is
// short: it is code to fetch, and little else.
#pragma once

#include "kernels/cuda/linear/mma.cuh"
#include "kernels/cuda/linear/w4_decode.cuh"
#include "kernels/cuda/linear/w4a16_mid.h"
#include "kernels/cuda/linear/w4a16_prepare.h"

namespace nibble::kernels::cuda {

// Elements from k on become zeros: what is there is not x. `v` begins at k0.
static __device__ __noinline__ uint4 ZeroFrom(uint4 v, int k0, int k) {
  uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (k0 + 2 * i + 1 >= k) pairs[i] &= 0xFFFFu;
    if (k0 + 2 * i >= k) pairs[i] = 0;
  }
  return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

// Where the sums of a thread's two columns of 16 go, `pitch` floats from group
// to group.
struct SumTarget {
  float* low;
  float* high;
  int pitch;
};

// The sums of the groups of x: of 16 columns and half a block in shared memory,
// in two swizzled chunks; `x` is the lane's row, lane % 16, of the first. As
// SumBlock of w4a16_small_x.cuh: a product with ones, in chains of up to 64
// elements; a group of 128 adds two. x is the A operand here, which takes 16
// columns at once and gives the same bits.
template <typename F, XType X>
__device__ __forceinline__ void SumHalf(uint32_t x, int chunk_bytes, int lane,
                                        const SumTarget& to) {
  constexpr int kSteps = kBlockK / kStepK / 2;
  constexpr int kChain = F::group < kChunkK ? F::group : kChunkK;
  constexpr int kChains = kBlockK / 2 / kChain;
  uint32_t a[kSteps][4];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int segment = step % 4 * 2 + lane / 16;
    LdMatrix4(a[step],
              x + step / 4 * chunk_bytes + ((segment ^ (lane % 8)) << 4));
  }
  float sum[kChains][4] = {};
  // Chains take turns.
#pragma unroll
  for (int i = 0; i < kChain / kStepK; ++i) {
#pragma unroll
    for (int chain = 0; chain < kChains; ++chain) {
      Mma<X>(sum[chain], a[chain * (kChain / kStepK) + i], Ones<X>(),
             Ones<X>());
    }
  }
  if (lane % 4 != 0) return;
  constexpr int kGroupChains = F::group / kChain;
#pragma unroll
  for (int i = 0; i < F::kGroupsPerBlock / 2; ++i) {
    float low = sum[i * kGroupChains][0], high = sum[i * kGroupChains][2];
    if constexpr (kGroupChains == 2) {
      low = __fadd_rn(low, sum[i * 2 + 1][0]);
      high = __fadd_rn(high, sum[i * 2 + 1][2]);
    }
    if constexpr (kScalesX<X>) {
      low *= 1 / kXScale;
      high *= 1 / kXScale;
    }
    to.low[i * to.pitch] = low;
    to.high[i * to.pitch] = high;
  }
}

// A warp takes 16 rows and half a block of k; grid: [rows / 16][halves / 4].
template <typename F, XType X>
__global__ void __launch_bounds__(32 * kPrepareWarps)
    W4a16Prepare(const __grid_constant__ PrepareParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kChunkBytes = kPrepareRows * 128;
  __shared__ __align__(1024) char shared[kPrepareWarps][2 * kChunkBytes];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  LetDependentsStart();
  const int half = blockIdx.y * kPrepareWarps + warp;
  if (half >= 2 * p.blocks_k) return;
  // Eight lanes to the 128 bytes of a chunk's row, four rows at once.
  const int row0 = blockIdx.x * kPrepareRows;
  const int in_tile = lane / 8, row = row0 + in_tile;
  const int k = half * (kBlockK / 2) + lane % 8 * 8;
  const char* from = p.x + row * p.ldx_bytes + k * 2;
  uint4 v[2][4];
  if (p.waits) WaitForDependency();
  if (blockIdx.x == 0 && half == 0) {
    for (int i = lane; i < p.counters; i += 32) p.arrived[i] = 0;
  }
#pragma unroll
  for (int c = 0; c < 2; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[c][i] = LoadGlobal16If(row + i * 4 < p.m && k + c * kChunkK < p.k,
                               from + i * 4 * p.ldx_bytes + c * (kChunkK * 2));
    }
  }
  if (p.k % 8 != 0) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[c][i] = ZeroFrom(v[c][i], k + c * kChunkK, p.k);
      }
    }
  }
  char* to = p.scaled + row * p.scaled_pitch_bytes + k * 2;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kScalesX<X>) {
        v[c][i] = Scaled<X>(v[c][i]);
        if (row + i * 4 < p.m && k + c * kChunkK < p.k) {
          *reinterpret_cast<uint4*>(to + i * 4 * p.scaled_pitch_bytes +
                                    c * (kChunkK * 2)) = v[c][i];
        }
      }
      if constexpr (kNeedsSums<F>) {
        *reinterpret_cast<uint4*>(
            shared[warp] + c * kChunkBytes + (i * 4 + in_tile) * 128 +
            ((lane % 8 ^ (i * 4 + in_tile) % 8) << 4)) = v[c][i];
      }
    }
  }
  if constexpr (kNeedsSums<F>) {
    __syncwarp();
    const int column = row0 % p.columns, pitch = SumsPitch(p.columns);
    constexpr int kHalfGroups = F::kGroupsPerBlock / 2;
    const int64_t groups = int64_t{p.blocks_k} * F::kGroupsPerBlock;
    float* sums =
        p.sums + (row0 / p.columns * groups + half * kHalfGroups) * pitch;
    SumHalf<F, X>(SharedAddress(shared[warp]) + lane % 16 * 128, kChunkBytes,
                  lane,
                  {sums + SumAt(p.columns, column + lane / 4),
                   sums + SumAt(p.columns, column + lane / 4 + 8), pitch});
  }
#endif
}

}  // namespace nibble::kernels::cuda
