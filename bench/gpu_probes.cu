#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "base/check.h"
#include "bench/gpu_probes.h"
#include "kernels/cuda/linear/mma.cuh"
#include "kernels/cuda/runtime.h"

namespace nibble::bench {
namespace {

using kernels::DType;
using kernels::cuda::W4Layout;
using kernels::cuda::W4Scale;

constexpr int kThreads = 256;
constexpr int kFillGrid = 2048;

__global__ void EmptyKernel() {}

__device__ uint64_t Nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void SpinKernel(int64_t ns) {
  const uint64_t end = Nanoseconds() + ns;
  while (Nanoseconds() < end) {
  }
}

// The store never happens; the compiler cannot know.
__device__ void Consume(uint32_t bits, uint32_t* never) {
  if (bits == 0x12345 && never != nullptr) *never = bits;
}

__global__ void FlushKernel(const uint4* data, int64_t count, uint32_t* never) {
  uint32_t bits = 0;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const uint4 v = data[i];
    bits ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  Consume(bits, never);
}

__device__ uint4 LoadOnce(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// No loop: the grid covers all, which proved faster than persistent CTAs and
// bulk copies. The loads are under way before the kernel ahead has ended.
template <int kLoads>
__global__ void __launch_bounds__(kThreads)
    ReadKernel(const uint4* data, int64_t count, uint32_t* never) {
  kernels::cuda::LetDependentsStart();
  const int64_t first = blockIdx.x * int64_t{kThreads} * kLoads + threadIdx.x;
  uint4 v[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int64_t at = first + i * kThreads;
    v[i] = at < count ? LoadOnce(data + at) : make_uint4(0, 0, 0, 0);
  }
  kernels::cuda::WaitForDependency();
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) bits ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
  Consume(bits, never);
}

// SplitMix64's output function (Steele, Lea, Flood 2014) of a counter.
__device__ uint64_t Random(uint64_t seed, int64_t index) {
  uint64_t z = (seed << 40) + static_cast<uint64_t>(index);
  z *= 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

__device__ uint4 RandomChunk(uint64_t seed, int64_t index) {
  const uint64_t a = Random(seed, 2 * index);
  const uint64_t b = Random(seed, 2 * index + 1);
  return make_uint4(a, a >> 32, b, b >> 32);
}

__device__ uint32_t HalfBits(float value) {
  return __half_as_ushort(__float2half_rn(value));
}

// 16 random bits to an FP16 scale of 0.002 to 0.003.
__device__ float SmallScale(uint32_t bits) {
  return 0.002f + 0.001f / 65536 * static_cast<float>(bits & 0xffff);
}

// A word of scales of the layout from a word of random bits.
__device__ uint32_t ScaleWord(W4Scale scale, uint32_t bits, int word) {
  const float s = SmallScale(bits);
  switch (scale) {
    case W4Scale::kScale:
      return HalfBits(s) | HalfBits(SmallScale(bits >> 16)) << 16;
    case W4Scale::kScaleMin:  // 7 to 8 steps below zero
      return HalfBits(s) |
             HalfBits(-s * (7 + static_cast<float>(bits >> 16) / 65536)) << 16;
    case W4Scale::kScaleZero:
      return HalfBits(s) | HalfBits(static_cast<float>(bits >> 28)) << 16;
    case W4Scale::kQ4K:  // 6-bit multiples of d and dmin; 32 on the average
      return word != 0 ? bits
                       : HalfBits(s / 32) | HalfBits(SmallScale(bits >> 16) / 4)
                                                << 16;
    case W4Scale::kE8m0:  // 2^-9 to 2^-6
      return (bits & 0x03030303) + 0x76767676 +
             0x01010101 * kernels::cuda::kE8m0Shift;
    case W4Scale::kE4m3:  // 0.25 to 3.75 times 2^-kE5m3TensorLog2
      return (bits & 0x1f1f1f1f) + 0xa8a8a8a8;
  }
  return 0;
}

__global__ void FillPackedKernel(W4Scale scale, int block_chunks, uint4* out,
                                 int64_t chunks, uint64_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < chunks;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint4 v = RandomChunk(seed, i);
    if (i % block_chunks >= kernels::cuda::kCodeBytes / 16) {
      v = make_uint4(ScaleWord(scale, v.x, 0), ScaleWord(scale, v.y, 1),
                     ScaleWord(scale, v.z, 2), ScaleWord(scale, v.w, 3));
    }
    out[i] = v;
  }
}

__global__ void FillBytesKernel(uint4* out, int64_t chunks, uint64_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < chunks;
       i += int64_t{gridDim.x} * blockDim.x) {
    out[i] = RandomChunk(seed, i);
  }
}

template <typename T>
__global__ void FillUniformKernel(T* out, int64_t count, Uniform range,
                                  uint64_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const float unit =
        static_cast<float>(Random(seed, i) >> 40) * (1.0f / (1 << 24));
    out[i] = T(range.low + (range.high - range.low) * unit);
  }
}

template <int kLoads>
void LaunchReadKernel(const void* data, int64_t bytes, bool overlap,
                      CUstream_st* stream) {
  const int64_t count = bytes / 16;
  const int64_t per_block = int64_t{kThreads} * kLoads;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3((count + per_block - 1) / per_block);
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  NIBBLE_CUDA_CHECK(cudaLaunchKernelEx(&config, ReadKernel<kLoads>,
                                       static_cast<const uint4*>(data), count,
                                       static_cast<uint32_t*>(nullptr)));
}

}  // namespace

void LaunchEmpty(CUstream_st* stream) {
  EmptyKernel<<<1, 32, 0, stream>>>();
  NIBBLE_CUDA_CHECK(cudaGetLastError());
}

void LaunchSpin(int64_t ns, CUstream_st* stream) {
  SpinKernel<<<1, 1, 0, stream>>>(ns);
  NIBBLE_CUDA_CHECK(cudaGetLastError());
}

void LaunchFlush(const void* buffer, int64_t bytes, CUstream_st* stream) {
  FlushKernel<<<1056, 512, 0, stream>>>(static_cast<const uint4*>(buffer),
                                        bytes / 16, nullptr);
  NIBBLE_CUDA_CHECK(cudaGetLastError());
}

void LaunchRead(const void* data, int64_t bytes, ReadPattern pattern,
                CUstream_st* stream) {
  NIBBLE_CHECK(bytes > 0 && bytes % 16 == 0);
  switch (pattern.loads) {
    case 4:
      return LaunchReadKernel<4>(data, bytes, pattern.overlap, stream);
    case 8:
      return LaunchReadKernel<8>(data, bytes, pattern.overlap, stream);
    case 16:
      return LaunchReadKernel<16>(data, bytes, pattern.overlap, stream);
    default:
      NIBBLE_CHECK(false);
  }
}

void LaunchFillPacked(W4Layout layout, void* blocks, int64_t bytes,
                      uint64_t seed, CUstream_st* stream) {
  NIBBLE_CHECK(bytes % layout.BlockBytes() == 0);
  FillPackedKernel<<<kFillGrid, kThreads, 0, stream>>>(
      layout.scale, layout.BlockBytes() / 16, static_cast<uint4*>(blocks),
      bytes / 16, seed);
  NIBBLE_CUDA_CHECK(cudaGetLastError());
}

void LaunchFillBytes(void* data, int64_t bytes, uint64_t seed,
                     CUstream_st* stream) {
  NIBBLE_CHECK(bytes % 16 == 0);
  FillBytesKernel<<<kFillGrid, kThreads, 0, stream>>>(static_cast<uint4*>(data),
                                                      bytes / 16, seed);
  NIBBLE_CUDA_CHECK(cudaGetLastError());
}

void LaunchFillUniform(DType dtype, void* data, int64_t count, Uniform range,
                       uint64_t seed, CUstream_st* stream) {
  if (dtype == DType::kF16) {
    FillUniformKernel<<<kFillGrid, kThreads, 0, stream>>>(
        static_cast<__half*>(data), count, range, seed);
  } else {
    NIBBLE_CHECK(dtype == DType::kBF16);
    FillUniformKernel<<<kFillGrid, kThreads, 0, stream>>>(
        static_cast<__nv_bfloat16*>(data), count, range, seed);
  }
  NIBBLE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nibble::bench
