// 8-bit activations as W4A8 kernels of formats with minimums want them: INT8
// unsigned by an offset, and beside them sums of groups (W4a8SumsPitch).
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/linear/mma.cuh"
#include "kernels/cuda/linear/w4a8.h"
#include "kernels/cuda/runtime.h"

namespace nibble::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLaneCodes = 16;  // that a thread reads at once

struct PrepareParams {
  const std::byte* codes;  // [m, pitch]
  int64_t pitch;
  std::byte* to;  // [m, pitch]
  uint4* sums;    // [m, 8 * stages]
  int m, k, stages;
};

// What lies between k and the pitch may be anything: the bytes of four codes of
// which `left` are there.
__device__ __forceinline__ uint32_t Mask(int left) {
  return left >= 4 ? ~0u : left <= 0 ? 0 : (1u << 8 * left) - 1;
}

// The sum of four codes.
template <bool kFp8>
__device__ __forceinline__ float SumFour(uint32_t word) {
  if constexpr (kFp8) {
    float sum = 0;
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const float2 two = __half22float2(__nv_cvt_fp8x2_to_halfraw2(
          static_cast<__nv_fp8x2_storage_t>(word >> 16 * pair), __NV_E4M3));
      sum = __fadd_rn(sum, __fadd_rn(two.x, two.y));
    }
    return sum;
  } else {
    return static_cast<float>(__dp4a(static_cast<int>(word), 0x01010101, 0));
  }
}

// Threads of a group of one row add up 16 codes each, and one stores the sum's
// two numbers, 4 bytes each, 16 bytes apart: of 4 groups there are 16 bytes of
// greater parts, then 16 of rests. Sums of INT8 are exact.
template <int kGroup, bool kFp8>
__global__ void __launch_bounds__(kThreads) Prepare(const PrepareParams p) {
  constexpr int kLanes = kGroup / kLaneCodes;  // that share a group
  const int groups = p.stages * kW4a8MinGroups;
  const int64_t at =
      int64_t{blockIdx.x} * (kThreads / kLanes) + threadIdx.x / kLanes;
  const int64_t row = at / groups;
  const int group = static_cast<int>(at - row * groups);
  const int lane = threadIdx.x % kLanes;
  const int k = group * kGroup + lane * kLaneCodes;
  LetDependentsStart();
  WaitForDependency();
  // Rows of codes have room for whole 16 bytes.
  const bool there = row < p.m && k < p.k;
  const uint4 codes = LoadGlobal16If(there, p.codes + row * p.pitch + k);
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = __fadd_rn(sum, SumFour<kFp8>(words[i] & Mask(p.k - (k + 4 * i))));
  }
  if (!kFp8 && there) {
    constexpr uint32_t kFlip = 0x80808080u;  // adds 128 to each byte
    *reinterpret_cast<uint4*>(p.to + row * p.pitch + k) = make_uint4(
        codes.x ^ kFlip, codes.y ^ kFlip, codes.z ^ kFlip, codes.w ^ kFlip);
  }
#pragma unroll
  for (int other = 1; other < kLanes; other *= 2) {
    sum += __shfl_xor_sync(~0u, sum, other);
  }
  if (row >= p.m || lane > 0) return;
  // A sum of INT8 has at most 15 bits and a sign: eight in the greater part,
  // the rest is exact.
  const __nv_bfloat16 high = __float2bfloat16_rn(sum);
  const __nv_bfloat16 low = __float2bfloat16_rn(sum - __bfloat162float(high));
  auto* const to = reinterpret_cast<__nv_bfloat162*>(
      p.sums + (row * p.stages + group / kW4a8MinGroups) * 8 +
      group % kW4a8MinGroups / 4 * 2);
  to[group % 4] = __halves2bfloat162(high, high);
  to[4 + group % 4] = __halves2bfloat162(low, low);
}

template <int kGroup, bool kFp8>
void Launch(const PrepareParams& p, CUstream_st* stream) {
  constexpr int kGroups = kThreads / (kGroup / kLaneCodes);  // of a CTA
  const int64_t groups = int64_t{p.m} * p.stages * kW4a8MinGroups;
  Prepare<kGroup, kFp8>
      <<<static_cast<unsigned>(DivideUp(groups, int64_t{kGroups})), kThreads, 0,
         stream>>>(p);
  NIBBLE_CUDA_CHECK(cudaGetLastError());
}
template <int kGroup>
void Launch(const PrepareParams& p, W4a8Format format, CUstream_st* stream) {
  if (format.kind == W4a8Kind::kE4m3) {
    Launch<kGroup, true>(p, stream);
  } else {
    Launch<kGroup, false>(p, stream);
  }
}

}  // namespace

void LaunchW4a8Prepare(const W4a8PrepareArgs& args, W4a8Format format,
                       CUstream_st* stream) {
  if (args.m == 0) return;
  NIBBLE_CHECK(format.HasMinimums());
  NIBBLE_CHECK(args.pitch % kLaneCodes == 0 && args.pitch >= args.k);
  const PrepareParams p{
      .codes = args.codes,
      .pitch = args.pitch,
      .to = args.to,
      .sums = reinterpret_cast<uint4*>(args.sums),
      .m = static_cast<int>(args.m),
      .k = static_cast<int>(args.k),
      .stages = static_cast<int>(W4a8MinStages(format, args.k))};
  if (format.group == 128) {
    Launch<128>(p, format, stream);
  } else {
    Launch<32>(p, format, stream);
  }
}

}  // namespace nibble::kernels::cuda
