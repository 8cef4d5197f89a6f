#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "kernels/cuda/linear/gather_rows.h"

namespace nibble::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxRowsAtOnce = 65535;  // gridDim.y's limit

__device__ float HalfAt(const uint8_t* bytes) {
  return __half2float(*reinterpret_cast<const __half*>(bytes));
}

// The packed scales of MXFP4 and NVFP4 (w4_layout.h).
__device__ float E8m0ToFloat(uint32_t e) {
  if (e == 255) return __uint_as_float(0x7fc00000);
  return ldexpf(1.0f, static_cast<int>(e) - kE8m0Bias);
}
__device__ float E5m3ToFloat(uint32_t bits) {
  return ldexpf(static_cast<float>(8 + bits % 8),
                static_cast<int>(bits / 8) - kE5m3Bias - 3);
}

// Scale and minimum of one of the eight groups of a Q4_K super-block's row, as
// ggml's get_scale_min_k4 reads them.
__device__ float2 Q4KScaleMin(const uint8_t* row, int group) {
  const uint8_t* q = row + 4;
  uint32_t scale, min;
  if (group < 4) {
    scale = q[group] & 63;
    min = q[group + 4] & 63;
  } else {
    scale = (q[group + 4] & 15) | (q[group - 4] >> 6) << 4;
    min = (q[group + 4] >> 4) | (q[group] >> 6) << 4;
  }
  return make_float2(HalfAt(row) * static_cast<float>(scale),
                     HalfAt(row + 2) * static_cast<float>(min));
}

// The weight in row `row` of a tile, column `k` of its block. Products of a
// 16-bit scale and a code are exact, so only the sums round.
__device__ float WeightAt(const W4Layout& layout, const uint8_t* block, int row,
                          int k) {
  const int step = k / kStepK;
  const int in_step = k % kStepK;
  const int lane = row % 8 * 4 + in_step % 8 / 2;
  const uint32_t word = *reinterpret_cast<const uint32_t*>(
      block + 16 * (32 * (step / 4) + lane) + 4 * (step % 4));
  const uint32_t half = in_step % 2 == 0 ? word & 0xffff : word >> 16;
  const int nibble = row / 8 + in_step / 8 * 2;
  const int group = k / layout.group;
  const uint8_t* scales = block + kCodeBytes;
  const uint8_t* scale = scales + layout.ScaleAt(row, group);
  if (layout.code == W4Code::kInt4) {
    const auto code = static_cast<float>(half >> (4 * nibble) & 15);
    switch (layout.scale) {
      case W4Scale::kScaleMin:
        return __fadd_rn(HalfAt(scale) * code, HalfAt(scale + 2));
      case W4Scale::kScaleZero:
        return HalfAt(scale) * (code - HalfAt(scale + 2));
      case W4Scale::kQ4K: {
        const float2 pair = Q4KScaleMin(scale, group);
        return __fsub_rn(pair.x * code, pair.y);
      }
      default:
        return HalfAt(scale) * (code - 8);
    }
  }
  constexpr auto kBits = kE2m1Bits;
  const auto bit = [&](int i) { return half >> kBits[nibble][i] & 1; };
  const uint32_t exponent = bit(1) << 1 | bit(2);
  const float magnitude = exponent == 0
                              ? 0.5f * static_cast<float>(bit(3))
                              : (1 + 0.5f * static_cast<float>(bit(3))) *
                                    static_cast<float>(1 << (exponent - 1));
  const float value = bit(0) != 0 ? -magnitude : magnitude;
  return (layout.scale == W4Scale::kE8m0 ? E8m0ToFloat(*scale)
                                         : E5m3ToFloat(*scale)) *
         value;
}

__device__ void Store(const TensorView& y, int64_t at, float value) {
  switch (y.dtype) {
    case DType::kBF16:
      static_cast<__nv_bfloat16*>(y.data)[at] = __float2bfloat16_rn(value);
      break;
    case DType::kF16:
      static_cast<__half*>(y.data)[at] = __float2half_rn(value);
      break;
    default:
      static_cast<float*>(y.data)[at] = value;
  }
}

// A thread makes one column of a row; rows beyond the grid follow.
__global__ void __launch_bounds__(kThreads)
    GatherRowsKernel(const __grid_constant__ GatherRowsArgs args) {
  const int64_t column =
      static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= args.w.k) return;
  const int64_t to = args.x_perm != nullptr ? args.x_perm[column] : column;
  const int64_t blocks = BlocksPerTile(args.w.k);
  const int block_bytes = args.w.layout.BlockBytes();
  for (int64_t i = blockIdx.y; i < args.y.rows; i += gridDim.y) {
    const int64_t row = args.ids[i] - args.first_row;
    if (row < 0 || row >= args.w.n) continue;
    const uint8_t* block =
        static_cast<const uint8_t*>(args.w.blocks) +
        (row / kTileRows * blocks + column / kBlockK) * block_bytes;
    const float weight =
        WeightAt(args.w.layout, block, static_cast<int>(row % kTileRows),
                 static_cast<int>(column % kBlockK));
    Store(args.y, i * args.y.row_stride + to,
          __fmul_rn(args.w.tensor_scale, weight));
  }
}

}  // namespace

void LaunchGatherRows(const GatherRowsArgs& args, const Stream& stream) {
  if (args.y.rows == 0) return;
  NIBBLE_CHECK_EQ(args.y.cols, args.w.k);
  const dim3 grid(static_cast<unsigned>((args.w.k + kThreads - 1) / kThreads),
                  static_cast<unsigned>(std::min(args.y.rows, kMaxRowsAtOnce)));
  GatherRowsKernel<<<grid, kThreads, 0, stream.get()>>>(args);
  NIBBLE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nibble::kernels::cuda
