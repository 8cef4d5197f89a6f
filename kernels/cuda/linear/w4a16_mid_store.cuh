// The end of the W4A16 kernel for many rows: a warpgroup's 64 rows of totals
// from shared memory to y.
#pragma once

#include "kernels/cuda/linear/half_pairs.cuh"
#include "kernels/cuda/linear/w4_store.cuh"
#include "kernels/cuda/linear/w4a16_mid_walk.cuh"

namespace nibble::kernels::cuda {

__device__ __forceinline__ float4 Four(const float (&v)[4]) {
  return make_float4(v[0], v[1], v[2], v[3]);
}
__device__ __forceinline__ void SetFour(float (&v)[4], float4 to) {
  v[0] = to.x;
  v[1] = to.y;
  v[2] = to.z;
  v[3] = to.w;
}
__device__ __forceinline__ float4 Sum(float4 a, const float (&b)[4]) {
  return make_float4(__fadd_rn(a.x, b[0]), __fadd_rn(a.y, b[1]),
                     __fadd_rn(a.z, b[2]), __fadd_rn(a.w, b[3]));
}

// Where k is split over CTAs: sums of quarters of a tile that they leave for
// the last of them. The first CTA adds its quarters up, the others leave each
// in a slot of its own: slots in ascending order are the order of summation.
__device__ __forceinline__ int SlotOf(const MidParams& p, int quarter) {
  const int first = kSliceSharers >> p.parts_log2;  // quarters of the first CTA
  return quarter < first ? 0 : quarter - (first - 1);
}
template <typename T>
__device__ __forceinline__ float4* SlotAt(const MidParams& p, int tile,
                                          int warpgroup, int slot) {
  const int64_t index =
      (int64_t{tile} * kSliceSharers + slot) * kMidWarpgroups + warpgroup;
  return reinterpret_cast<float4*>(p.partials) +
         index * (T::kTiles * kWarpgroupThreads) +
         threadIdx.x % kWarpgroupThreads;
}
template <typename T>
__device__ __forceinline__ void LeaveSum(float4* to,
                                         const float (&sum)[T::kTiles][4]) {
#pragma unroll
  for (int i = 0; i < T::kTiles; ++i) to[i * kWarpgroupThreads] = Four(sum[i]);
}
template <typename T>
__device__ __forceinline__ void AddTo(const float4* from,
                                      float (&sum)[T::kTiles][4]) {
#pragma unroll
  for (int i = 0; i < T::kTiles; ++i) {
    SetFour(sum[i], Sum(from[i * kWarpgroupThreads], sum[i]));
  }
}

// After a warpgroup has left all it has of a tile: false, or, in the last of
// the parts' CTAs, true and the total. `own`: the warpgroup's shared memory, of
// which a word is used.
template <typename T>
__device__ __forceinline__ bool AddParts(const MidParams& p, int tile,
                                         int warpgroup, float* own,
                                         float (&total)[T::kTiles][4]) {
  const int barrier = kWarpgroupBarrier + warpgroup;
  auto* const before = reinterpret_cast<int*>(own);
  __threadfence();
  BarrierOf(barrier, kWarpgroupThreads);
  if (threadIdx.x % kWarpgroupThreads == 0) {
    *before = static_cast<int>(
        atomicAdd(p.arrived + tile * kMidWarpgroups + warpgroup, 1u));
    __threadfence();
  }
  BarrierOf(barrier, kWarpgroupThreads);
  if (*before != (1 << p.parts_log2) - 1) return false;
  const int slots = SlotOf(p, kSliceSharers - 1) + 1;
#pragma unroll
  for (int i = 0; i < T::kTiles; ++i) {
    const float4* from =
        SlotAt<T>(p, tile, warpgroup, 0) + i * kWarpgroupThreads;
    SetFour(total[i], __ldcg(from));
    for (int slot = 1; slot < slots; ++slot) {
      from += kMidWarpgroups * T::kTiles * kWarpgroupThreads;
      const float4 v = __ldcg(from);
      SetFour(total[i], make_float4(__fadd_rn(total[i][0], v.x),
                                    __fadd_rn(total[i][1], v.y),
                                    __fadd_rn(total[i][2], v.z),
                                    __fadd_rn(total[i][3], v.w)));
    }
  }
  return true;
}

// Finish of four neighbouring 16-bit outputs, in one load and one store.
template <typename Pair>
__device__ __forceinline__ void FinishFour(char* y, bool add, float (&v)[4]) {
  auto* to = reinterpret_cast<uint2*>(y);
  if (add) {
    const uint2 old = *to;
    const float2 low = UnpackPair<Pair>(old.x), high = UnpackPair<Pair>(old.y);
    v[0] = __fadd_rn(v[0], low.x);
    v[1] = __fadd_rn(v[1], low.y);
    v[2] = __fadd_rn(v[2], high.x);
    v[3] = __fadd_rn(v[3], high.y);
  }
  *to = make_uint2(PackPair<Pair>(v[0], v[1]), PackPair<Pair>(v[2], v[3]));
}

// Four neighbouring outputs of a row of y from `column` on, which may end
// early. `wide`: that whole fours of 16-bit outputs are aligned.
__device__ __forceinline__ void StoreFour(const Output& out, bool wide,
                                          int64_t row, int column,
                                          float (&v)[4]) {
  const int64_t at = row * out.ldy + column;
  if (!wide || column + 4 > out.n_out) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (column + i < out.n_out) Finish(out, at + i, column + i, v[i]);
    }
    return;
  }
  if (out.bias != nullptr) {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = __fadd_rn(v[i], out.bias[column + i]);
  }
  const bool add = out.epilogue == W4Epilogue::kAdd;
  auto* y = static_cast<char*>(out.y) + at * 2;
  if (out.dtype == DType::kBF16) {
    FinishFour<__nv_bfloat162>(y, add, v);
  } else {
    FinishFour<__half2>(y, add, v);
  }
}

// A warpgroup stores its tile, whose totals are in its threads as fragments of
// wgmma, by way of `shared`, [kColumns][kTotalPitch]. Column 0 is row `x_row0`
// of x, row 0 is row `w_row0` of W. `barrier`: the warpgroup's.
template <int kColumns>
__device__ __forceinline__ void StoreTile(const MidParams& p,
                                          const float (&total)[kColumns / 8][4],
                                          float* shared, int x_row0, int w_row0,
                                          int thread, int barrier) {
  const Output& out = p.out;
  BarrierOf(barrier, kWarpgroupThreads);  // what was there has been read
  {
    const int lane = thread % 32;
    float* at = shared + lane % 4 * 2 * kTotalPitch + thread / 32 * kTileRows +
                lane / 4;
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i, at += 8 * kTotalPitch) {
      at[0] = __fmul_rn(total[i][0], p.tensor_scale);
      at[kTotalPitch] = __fmul_rn(total[i][1], p.tensor_scale);
      at[8] = __fmul_rn(total[i][2], p.tensor_scale);
      at[kTotalPitch + 8] = __fmul_rn(total[i][3], p.tensor_scale);
    }
  }
  BarrierOf(barrier, kWarpgroupThreads);
  WaitForDependency();
  const int columns = min(kColumns, p.m - x_row0);
  const bool wide = out.dtype != DType::kF32 && out.ldy % 4 == 0 &&
                    reinterpret_cast<uintptr_t>(out.y) % 8 == 0;
  constexpr int kFours = kWarpgroupRows / 4;
  constexpr int kStep = kWarpgroupThreads / kFours;  // columns at once
  const int row = thread % kFours * 4;
  const float* from = shared + thread / kFours * kTotalPitch + row;
  if (out.plain && wide && w_row0 + kWarpgroupRows <= out.n_out) {
    auto* y = static_cast<__nv_bfloat16*>(out.y) + w_row0 + row +
              (x_row0 + thread / kFours) * out.ldy;
#pragma unroll 4
    for (int c = thread / kFours; c < columns; c += kStep) {
      const float4 f = *reinterpret_cast<const float4*>(from);
      float v[4] = {f.x, f.y, f.z, f.w};
      FinishFour<__nv_bfloat162>(reinterpret_cast<char*>(y), false, v);
      from += kStep * kTotalPitch;
      y += kStep * out.ldy;
    }
  } else {
    const bool silu = out.epilogue == W4Epilogue::kSiluMul;
    // Of kSiluMul tiles of 16 gate rows and of their 16 up rows alternate:
    // fours of up rows have nothing to store.
    const bool up_row = silu && row % (2 * kTileRows) >= kTileRows;
    const int column =
        silu ? (w_row0 + row / (2 * kTileRows) * (2 * kTileRows)) / 2 +
                   row % kTileRows
             : w_row0 + row;
#pragma unroll 1
    for (int c = thread / kFours; c < (up_row ? 0 : columns); c += kStep) {
      const float4 f = *reinterpret_cast<const float4*>(from);
      float v[4] = {f.x, f.y, f.z, f.w};
      if (silu) {
        const float4 up = *reinterpret_cast<const float4*>(from + kTileRows);
        v[0] = SiluMul(v[0], up.x);
        v[1] = SiluMul(v[1], up.y);
        v[2] = SiluMul(v[2], up.z);
        v[3] = SiluMul(v[3], up.w);
      }
      StoreFour(out, wide, x_row0 + c, column, v);
      from += kStep * kTotalPitch;
    }
  }
}

}  // namespace nibble::kernels::cuda
