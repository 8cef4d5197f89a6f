#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "base/check.h"
#include "base/checked_math.h"
#include "bench/norm_kernel.h"
#include "kernels/cuda/linear/mma.cuh"
#include "kernels/cuda/runtime.h"

namespace nibble::bench {
namespace {

using kernels::DType;

constexpr int kChunk = 8;  // values of 16 bytes
constexpr int kChunks = 4;
constexpr int kWarp = 32;
constexpr int kMaxWarps = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
static_assert(kMaxNormK == kMaxWarps * kWarp * kChunks * kChunk);

__device__ float2 ToFloats(__nv_bfloat162 pair) {
  return __bfloat1622float2(pair);
}
__device__ float2 ToFloats(__half2 pair) { return __half22float2(pair); }
__device__ void FromFloats(float2 pair, __nv_bfloat162& to) {
  to = __float22bfloat162_rn(pair);
}
__device__ void FromFloats(float2 pair, __half2& to) {
  to = __float22half2_rn(pair);
}

__device__ float WarpSum(float value) {
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, lanes);
  }
  return value;
}

__device__ float BlockSum(float value) {
  __shared__ float parts[kMaxWarps];
  value = WarpSum(value);
  const int lane = threadIdx.x % kWarp;
  if (lane == 0) parts[threadIdx.x / kWarp] = value;
  __syncthreads();
  return WarpSum(lane < blockDim.x / kWarp ? parts[lane] : 0);
}

// A CTA a row, 16 bytes at a time: all loads, one sum, all stores. T2 is a
// pair of values.
template <typename T2>
__global__ void __launch_bounds__(kMaxWarps* kWarp)
    NormKernel(const uint4* x, const float4* weight, float eps, uint4* y,
               int chunks) {
  kernels::cuda::LetDependentsStart();
  kernels::cuda::WaitForDependency();
  const int64_t row = int64_t{blockIdx.x} * chunks;
  uint4 v[kChunks];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int chunk = i * blockDim.x + threadIdx.x;
    v[i] = chunk < chunks ? x[row + chunk] : make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const T2* pairs = reinterpret_cast<const T2*>(&v[i]);
#pragma unroll
    for (int j = 0; j < kChunk / 2; ++j) {
      const float2 pair = ToFloats(pairs[j]);
      squares += pair.x * pair.x + pair.y * pair.y;
    }
  }
  const float mean = BlockSum(squares) / static_cast<float>(chunks * kChunk);
  const float factor = rsqrtf(mean + eps);
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int chunk = i * blockDim.x + threadIdx.x;
    if (chunk >= chunks) break;
    T2* pairs = reinterpret_cast<T2*>(&v[i]);
#pragma unroll
    for (int j = 0; j < kChunk / 4; ++j) {
      const float4 w = weight[chunk * (kChunk / 4) + j];
      const float2 low = ToFloats(pairs[2 * j]);
      const float2 high = ToFloats(pairs[2 * j + 1]);
      FromFloats({low.x * factor * w.x, low.y * factor * w.y}, pairs[2 * j]);
      FromFloats({high.x * factor * w.z, high.y * factor * w.w},
                 pairs[2 * j + 1]);
    }
    y[row + chunk] = v[i];
  }
}

}  // namespace

void LaunchNorm(const NormArgs& args, CUstream_st* stream) {
  NIBBLE_CHECK(args.k > 0 && args.k <= kMaxNormK && args.k % kChunk == 0);
  NIBBLE_CHECK(args.dtype == DType::kBF16 || args.dtype == DType::kF16);
  const auto chunks = static_cast<int>(args.k / kChunk);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(args.m));
  config.blockDim = dim3(RoundUp(DivideUp(chunks, kChunks), kWarp));
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = args.overlap ? 1 : 0;
  NIBBLE_CUDA_CHECK(
      cudaLaunchKernelEx(&config,
                         args.dtype == DType::kBF16 ? NormKernel<__nv_bfloat162>
                                                    : NormKernel<__half2>,
                         static_cast<const uint4*>(args.x),
                         reinterpret_cast<const float4*>(args.weight), args.eps,
                         static_cast<uint4*>(args.y), chunks));
}

}  // namespace nibble::bench
