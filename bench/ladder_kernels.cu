#include <cuda_fp16.h>

#include "bench/ladder_kernels.h"
#include "kernels/cuda/runtime.h"

// Of every kernel here a warp computes a row, a lane every 32nd block of it.
// The loops over blocks are not unrolled: ladder_sass_test counts the loads of
// one step.

namespace nibble::bench {
namespace {

constexpr int kWarps = 8;
constexpr int kLanes = 32;
constexpr int kThreads = kWarps * kLanes;

__device__ int Row() { return blockIdx.x * kWarps + threadIdx.x / kLanes; }
__device__ int Lane() { return threadIdx.x % kLanes; }

__device__ void StoreRowSum(float sum, float* y, int row) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    sum += __shfl_xor_sync(0xffffffff, sum, step);
  }
  if (Lane() == 0) y[row] = sum;
}

__device__ float LowCode(uint32_t byte) {
  return static_cast<float>(static_cast<int>(byte & 15) - 8);
}
__device__ float HighCode(uint32_t byte) {
  return static_cast<float>(static_cast<int>(byte >> 4 & 15) - 8);
}

__global__ void __launch_bounds__(kThreads)
    ByteLoadsKernel(const uint8_t* __restrict__ codes,
                    const __half* __restrict__ scales,
                    const __half* __restrict__ x, float* __restrict__ y, int n,
                    int blocks) {
  const int row = Row();
  if (row >= n) return;
  codes += int64_t{row} * blocks * kQ4BlockCodeBytes;
  scales += int64_t{row} * blocks;
  float sum = 0;
#pragma unroll 1
  for (int b = Lane(); b < blocks; b += kLanes) {
    const float scale = __half2float(scales[b]);
    const uint8_t* block = codes + b * kQ4BlockCodeBytes;
    const __half* xs = x + b * kQ4BlockWeights;
    float dot = 0;
#pragma unroll
    for (int j = 0; j < kQ4BlockCodeBytes; ++j) {
      const uint32_t byte = block[j];
      dot += LowCode(byte) * __half2float(xs[2 * j]);
      dot += HighCode(byte) * __half2float(xs[2 * j + 1]);
    }
    sum += scale * dot;
  }
  StoreRowSum(sum, y, row);
}

// The four code bytes of a word times eight elements of x.
__device__ float DotWord(uint32_t word, const float2 (&x)[4]) {
  float dot = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    dot += LowCode(word >> (8 * j)) * x[j].x;
    dot += HighCode(word >> (8 * j)) * x[j].y;
  }
  return dot;
}

// kPairsAtOnce: pairs of x in one load, 1 or 4.
template <int kPairsAtOnce>
__global__ void __launch_bounds__(kThreads)
    WideLoadsKernel(const uint8_t* __restrict__ codes,
                    const __half* __restrict__ scales,
                    const __half* __restrict__ x, float* __restrict__ y, int n,
                    int blocks) {
  const int row = Row();
  if (row >= n) return;
  codes += int64_t{row} * blocks * kQ4BlockCodeBytes;
  scales += int64_t{row} * blocks;
  float sum = 0;
#pragma unroll 1
  for (int b = Lane(); b < blocks; b += kLanes) {
    const float scale = __half2float(scales[b]);
    const uint4 packed =
        *reinterpret_cast<const uint4*>(codes + b * kQ4BlockCodeBytes);
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
    const __half* xs = x + b * kQ4BlockWeights;
    float dot = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      __half2 pairs[4];
      if constexpr (kPairsAtOnce == 4) {
        *reinterpret_cast<uint4*>(pairs) =
            reinterpret_cast<const uint4*>(xs)[i];
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          pairs[j] = reinterpret_cast<const __half2*>(xs)[4 * i + j];
        }
      }
      const float2 values[4] = {
          __half22float2(pairs[0]), __half22float2(pairs[1]),
          __half22float2(pairs[2]), __half22float2(pairs[3])};
      dot += DotWord(words[i], values);
    }
    sum += scale * dot;
  }
  StoreRowSum(sum, y, row);
}

// A warp quantizes a block of x, a lane an element.
__global__ void __launch_bounds__(kThreads)
    QuantizeKernel(const __half* __restrict__ x, int blocks,
                   uint8_t* __restrict__ codes, float2* __restrict__ scales) {
  const int block = Row();
  if (block >= blocks) return;
  const int lane = Lane();
  const float value = __half2float(x[block * kQ4BlockWeights + lane]);
  float greatest = fabsf(value);
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    greatest = fmaxf(greatest, __shfl_xor_sync(0xffffffff, greatest, step));
  }
  const float scale = greatest / 127;
  const int code = scale == 0 ? 0 : __float2int_rn(value / scale);
  int sum = code;
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    sum += __shfl_xor_sync(0xffffffff, sum, step);
  }
  codes[block * kQ4BlockWeights + lane % 2 * 16 + lane / 2] =
      static_cast<uint8_t>(code);
  if (lane == 0) {
    scales[block] = make_float2(scale, scale * static_cast<float>(sum));
  }
}

__global__ void __launch_bounds__(kThreads)
    IntegerDotsKernel(const uint8_t* __restrict__ codes,
                      const __half* __restrict__ scales,
                      const uint8_t* __restrict__ x_codes,
                      const float2* __restrict__ x_scales,
                      float* __restrict__ y, int n, int blocks) {
  const int row = Row();
  if (row >= n) return;
  codes += int64_t{row} * blocks * kQ4BlockCodeBytes;
  scales += int64_t{row} * blocks;
  constexpr uint32_t kLow = 0x0f0f0f0f;
  float sum = 0;
#pragma unroll 1
  for (int b = Lane(); b < blocks; b += kLanes) {
    const uint4 w =
        *reinterpret_cast<const uint4*>(codes + b * kQ4BlockCodeBytes);
    const uint4* xs =
        reinterpret_cast<const uint4*>(x_codes + b * kQ4BlockWeights);
    const uint4 even = xs[0];
    const uint4 odd = xs[1];
    int dot = __dp4a(static_cast<int>(w.x & kLow), static_cast<int>(even.x), 0);
    dot = __dp4a(static_cast<int>(w.y & kLow), static_cast<int>(even.y), dot);
    dot = __dp4a(static_cast<int>(w.z & kLow), static_cast<int>(even.z), dot);
    dot = __dp4a(static_cast<int>(w.w & kLow), static_cast<int>(even.w), dot);
    dot =
        __dp4a(static_cast<int>(w.x >> 4 & kLow), static_cast<int>(odd.x), dot);
    dot =
        __dp4a(static_cast<int>(w.y >> 4 & kLow), static_cast<int>(odd.y), dot);
    dot =
        __dp4a(static_cast<int>(w.z >> 4 & kLow), static_cast<int>(odd.z), dot);
    dot =
        __dp4a(static_cast<int>(w.w >> 4 & kLow), static_cast<int>(odd.w), dot);
    const float2 x_scale = x_scales[b];
    // sum of scale (code - 8) * x_scale * x_code
    sum += __half2float(scales[b]) *
           (x_scale.x * static_cast<float>(dot) - 8 * x_scale.y);
  }
  StoreRowSum(sum, y, row);
}

__global__ void __launch_bounds__(kThreads)
    HalfMatrixKernel(const uint4* __restrict__ w, const uint4* __restrict__ x,
                     float* __restrict__ y, int n, int chunks) {
  const int row = Row();
  if (row >= n) return;
  w += int64_t{row} * chunks;
  float sum = 0;
#pragma unroll 4
  for (int c = Lane(); c < chunks; c += kLanes) {
    const uint4 w_bits = w[c];
    const uint4 x_bits = x[c];
    const __half2* w_pairs = reinterpret_cast<const __half2*>(&w_bits);
    const __half2* x_pairs = reinterpret_cast<const __half2*>(&x_bits);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 a = __half22float2(w_pairs[j]);
      const float2 b = __half22float2(x_pairs[j]);
      sum += a.x * b.x + a.y * b.y;
    }
  }
  StoreRowSum(sum, y, row);
}

int Grid(int64_t rows) {
  return static_cast<int>((rows + kWarps - 1) / kWarps);
}

const __half* Halves(const void* data) {
  return static_cast<const __half*>(data);
}

template <typename Kernel>
void LaunchQ4(Kernel kernel, const LadderQ4& w, const void* x, float* y,
              CUstream_st* stream) {
  kernel<<<Grid(w.n), kThreads, 0, stream>>>(
      w.codes, Halves(w.scales), Halves(x), y, static_cast<int>(w.n),
      static_cast<int>(w.k / kQ4BlockWeights));
  NIBBLE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void LaunchByteLoads(const LadderQ4& w, const void* x, float* y,
                     CUstream_st* stream) {
  LaunchQ4(ByteLoadsKernel, w, x, y, stream);
}

void LaunchWideCodes(const LadderQ4& w, const void* x, float* y,
                     CUstream_st* stream) {
  LaunchQ4(WideLoadsKernel<1>, w, x, y, stream);
}

void LaunchWideAll(const LadderQ4& w, const void* x, float* y,
                   CUstream_st* stream) {
  LaunchQ4(WideLoadsKernel<4>, w, x, y, stream);
}

void LaunchQuantize(const void* x, int64_t k, const LadderQ8& q,
                    CUstream_st* stream) {
  const int blocks = static_cast<int>(k / kQ4BlockWeights);
  QuantizeKernel<<<Grid(blocks), kThreads, 0, stream>>>(
      Halves(x), blocks, q.codes, reinterpret_cast<float2*>(q.scales));
  NIBBLE_CUDA_CHECK(cudaGetLastError());
}

void LaunchIntegerDots(const LadderQ4& w, const LadderQ8& x, float* y,
                       CUstream_st* stream) {
  IntegerDotsKernel<<<Grid(w.n), kThreads, 0, stream>>>(
      w.codes, Halves(w.scales), x.codes,
      reinterpret_cast<const float2*>(x.scales), y, static_cast<int>(w.n),
      static_cast<int>(w.k / kQ4BlockWeights));
  NIBBLE_CUDA_CHECK(cudaGetLastError());
}

void LaunchHalfMatrix(const void* w, const void* x, float* y, int64_t n,
                      int64_t k, CUstream_st* stream) {
  HalfMatrixKernel<<<Grid(n), kThreads, 0, stream>>>(
      static_cast<const uint4*>(w), static_cast<const uint4*>(x), y,
      static_cast<int>(n), static_cast<int>(k / 8));
  NIBBLE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nibble::bench
