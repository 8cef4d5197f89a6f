// Sums of groups of INT8 activations, as the W4A8 kernels multiply them with
// minimums (W4a8SumsPitch).
#include <cuda_bf16.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/linear/mma.cuh"
#include "kernels/cuda/linear/w4a8.h"
#include "kernels/cuda/runtime.h"

namespace nibble::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLaneCodes = 16;  // that a thread reads at once

struct SumsParams {
  const int8_t* codes;  // [m, pitch]
  int64_t pitch;
  uint4* sums;  // [m, 8 * stages]
  int m, k, stages;
};

// A thread adds up one group of one row and stores its two numbers, 4 bytes
// each, 16 bytes apart: of 4 groups there are 16 bytes of greater parts, then
// 16 of rests.
template <int kGroup>
__global__ void __launch_bounds__(kThreads) SumGroups(const SumsParams p) {
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
  constexpr int kOnes = 0x01010101;
  int sum = 0;
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // What lies between k and the pitch may be anything.
    const int left = p.k - (k + 4 * i);
    const uint32_t mask = left >= 4   ? ~0u
                          : left <= 0 ? 0
                                      : (1u << 8 * left) - 1;
    sum = __dp4a(static_cast<int>(words[i] & mask), kOnes, sum);
  }
#pragma unroll
  for (int other = 1; other < kLanes; other *= 2) {
    sum += __shfl_xor_sync(~0u, sum, other);
  }
  if (row >= p.m || lane > 0) return;
  // A sum has at most 15 bits and a sign: eight in the greater part, the rest
  // is exact.
  const float whole = static_cast<float>(sum);
  const __nv_bfloat16 high = __float2bfloat16_rn(whole);
  const __nv_bfloat16 low = __float2bfloat16_rn(whole - __bfloat162float(high));
  auto* const to = reinterpret_cast<__nv_bfloat162*>(
      p.sums + (row * p.stages + group / kW4a8MinGroups) * 8 +
      group % kW4a8MinGroups / 4 * 2);
  to[group % 4] = __halves2bfloat162(high, high);
  to[4 + group % 4] = __halves2bfloat162(low, low);
}

template <int kGroup>
void Launch(const SumsParams& p, CUstream_st* stream) {
  constexpr int kGroups = kThreads / (kGroup / kLaneCodes);  // of a CTA
  const int64_t groups = int64_t{p.m} * p.stages * kW4a8MinGroups;
  SumGroups<kGroup><<<static_cast<unsigned>(DivideUp(groups, int64_t{kGroups})),
                      kThreads, 0, stream>>>(p);
  NIBBLE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void LaunchW4a8Sums(const W4a8Activations& x, W4a8Format format, int64_t m,
                    int64_t k, std::byte* sums, CUstream_st* stream) {
  if (m == 0) return;
  NIBBLE_CHECK(format.HasMinimums());
  NIBBLE_CHECK(x.pitch % kLaneCodes == 0 && x.pitch >= k);
  const SumsParams p{.codes = x.codes,
                     .pitch = x.pitch,
                     .sums = reinterpret_cast<uint4*>(sums),
                     .m = static_cast<int>(m),
                     .k = static_cast<int>(k),
                     .stages = static_cast<int>(W4a8MinStages(format, k))};
  if (format.group == 128) {
    Launch<128>(p, stream);
  } else {
    Launch<32>(p, stream);
  }
}

}  // namespace nibble::kernels::cuda
