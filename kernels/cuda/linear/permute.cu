#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "kernels/cuda/linear/permute.h"

namespace nibble::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kPerThread = 8;              // one 16-byte store
constexpr int64_t kMaxRowsAtOnce = 65535;  // gridDim.y's limit

// A thread makes eight columns of a row; rows beyond the grid follow.
__global__ void __launch_bounds__(kThreads)
    GatherColumnsKernel(GatherColumnsArgs args) {
  const int64_t first =
      (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kPerThread;
  if (first >= args.ldout) return;
  int32_t columns[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    columns[i] = first + i < args.k ? args.columns[first + i] : -1;
  }
  for (int64_t row = blockIdx.y; row < args.m; row += gridDim.y) {
    const uint16_t* x = static_cast<const uint16_t*>(args.x) + row * args.ldx;
    uint16_t* out = static_cast<uint16_t*>(args.out) + row * args.ldout;
    uint32_t words[kPerThread / 2];
#pragma unroll
    for (int i = 0; i < kPerThread / 2; ++i) {
      const uint32_t low = columns[2 * i] < 0 ? 0 : x[columns[2 * i]];
      const uint32_t high = columns[2 * i + 1] < 0 ? 0 : x[columns[2 * i + 1]];
      words[i] = low | high << 16;
    }
    *reinterpret_cast<uint4*>(out + first) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
}

}  // namespace

void GatherColumns(const GatherColumnsArgs& args, const Stream& stream) {
  if (args.m == 0) return;
  NIBBLE_CHECK(args.ldout % kPerThread == 0 && args.ldout >= args.k);
  const int64_t per_block = kThreads * kPerThread;
  const dim3 grid(
      static_cast<unsigned>((args.ldout + per_block - 1) / per_block),
      static_cast<unsigned>(std::min(args.m, kMaxRowsAtOnce)));
  GatherColumnsKernel<<<grid, kThreads, 0, stream.get()>>>(args);
  NIBBLE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nibble::kernels::cuda
