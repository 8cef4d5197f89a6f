// W4A16 for few rows: the kernel that reads weights at the speed of memory.
//
// A persistent CTA owns every gridDim.x-th run of tiles of W. Its warps stand
// in a grid: slices along k (warps along threadIdx.x, w4_layout.h) times lanes
// along tiles (threadIdx.y). A warp walks its slice of its tiles with a ring of
// its own in shared memory, filled by cp.async; nothing but a warp's own ring
// is waited for, so the main loop has no barrier. x is staged in shared memory
// once, with the sums of its groups. The partial sums of up to `epoch` tiles
// meet in shared memory, where they are added in order of slice.
//
// One CTA serves 8 * NT rows of x (blockIdx.y): it is made for no more. What
// comes before the first load counts in full when L2 is cold, also as
// instructions to fetch: the prologue is kept short.
#pragma once

#include "kernels/cuda/linear/mma.cuh"
#include "kernels/cuda/linear/w4_decode.cuh"
#include "kernels/cuda/linear/w4_store.cuh"
#include "kernels/cuda/linear/w4a16_small.h"

namespace nibble::kernels::cuda {

// Brings a slice's part of rows [row0, row0 + rows) of x to shared memory,
// zeros beyond k. Through registers: for lines that every SM asks for at the
// same time plain loads are several times as fast as cp.async or bulk copies
// (docs/kernels.md). A warp takes a row's 256 elements of a block at a time,
// rows first, and keeps kBatch loads in flight.
template <XType X>
class StageX {
 public:
  // Blocks [first, first + count) of k.
  __device__ __forceinline__ StageX(const SmallParams& p, char* staged,
                                    int row0, int rows, int first, int count)
      : from_(p.x + row0 * p.ldx_bytes + At(first)),
        to_(staged + At(first)),
        k_left_(p.k * 2 - At(first)),
        ldx_(p.ldx_bytes),
        pitch_(StagedRowBytes(p.blocks_k)),
        rows_(rows),
        left_(count * rows) {}

  __device__ __forceinline__ void Load() {
    const char* from = from_;
    int row = row_, k_left = k_left_;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (i >= left_) break;  // the same for the whole warp
      batch_[i] = LoadGlobal16If(k_left > 0, from);
      from += ldx_;
      if (++row == rows_) {
        row = 0;
        from += kRun - rows_ * ldx_;
        k_left -= kRun;
      }
    }
    from_ = from;
    k_left_ = k_left;
  }
  // False when nothing is left.
  __device__ __forceinline__ bool Store() {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (i >= left_) break;
      *reinterpret_cast<uint4*>(to_) = Scaled<X>(batch_[i]);
      to_ += pitch_;
      if (++row_ == rows_) {
        row_ = 0;
        to_ += kRun - rows_ * pitch_;
      }
    }
    left_ -= kBatch;
    return left_ > 0;
  }

 private:
  static constexpr int kBatch = 8;
  static constexpr int kRun = kBlockK * 2;  // bytes that a warp takes at once
  __device__ static int At(int block) {
    return threadIdx.x % 32 * 16 + block * kRun;
  }

  const char* from_;
  char* to_;
  int k_left_;  // bytes of the row from this lane's 16 on
  int64_t ldx_;
  int pitch_, rows_, left_, row_ = 0;
  uint4 batch_[kBatch];
};

// Elements of staged x from k on to the next multiple of eight may hold
// anything: zeros instead, by the warp that brought them.
static __device__ __noinline__ void ZeroTail(const SmallParams& p, char* staged,
                                             int rows, int first, int count) {
  const int block = p.k / kBlockK;
  if (block < first || block >= first + count) return;
  for (int row = threadIdx.x % 32; row < rows; row += 32) {
    for (int k = p.k; k % 8 != 0; ++k) {
      *reinterpret_cast<uint16_t*>(staged + row * StagedRowBytes(p.blocks_k) +
                                   k * 2) = 0;
    }
  }
}

// One of the outputs that a thread adds up when an epoch of `count` tiles from
// `begin` on is done: where its slices and its place in y are. Worked out
// before the tiles, so that little is left to do after the last.
struct ReduceItem {
  const float* from;
  int64_t at;
  int column;  // negative: no such output

  template <typename TileOf>
  __device__ __forceinline__ ReduceItem(const SmallParams& p,
                                        const float* partial, int slices,
                                        int begin, int count, int row0,
                                        int rows, int index,
                                        const TileOf& tile_of) {
    const int units = count >> p.run_log2;
    const int o = static_cast<uint32_t>(index) / kTileRows;
    const int r = static_cast<uint32_t>(index) % kTileRows;
    const int row =
        rows == 1 ? 0 : static_cast<int>((o + 0.5f) * __fdividef(1.0f, units));
    const int unit = o - row * units;
    const int tile = tile_of(begin + (unit << p.run_log2));
    const int feature = (tile >> p.run_log2) * kTileRows + r;
    column = o < units * rows && feature < p.out.n_out ? feature : -1;
    at = (row0 + row) * p.out.ldy + feature;
    from = partial +
           ((unit << p.run_log2) * slices * rows + row) * kPartialPitch + r;
  }
};

// Adds an output's slices in ascending order and stores it.
__device__ __forceinline__ void Reduce(const SmallParams& p,
                                       const ReduceItem& item, int slices,
                                       int rows) {
  if (item.column < 0) return;
  const int pitch = rows * kPartialPitch;
  const auto total = [&](const float* from) {
    float sum;
    if (slices == kMaxSlices) {
      float v[kMaxSlices];
#pragma unroll
      for (int s = 0; s < kMaxSlices; ++s) v[s] = from[s * pitch];
      sum = v[0];
#pragma unroll
      for (int s = 1; s < kMaxSlices; ++s) sum = __fadd_rn(sum, v[s]);
    } else {
      sum = from[0];
#pragma unroll 4
      for (int s = 1; s < slices; ++s) sum = __fadd_rn(sum, from[s * pitch]);
    }
    return __fmul_rn(sum, p.tensor_scale);
  };
  float v = total(item.from);
  if (p.out.plain) {
    static_cast<__nv_bfloat16*>(p.out.y)[item.at] = __float2bfloat16_rn(v);
    return;
  }
  if (p.out.epilogue == W4Epilogue::kSiluMul) {
    v = SiluMul(v, total(item.from + slices * pitch));
  }
  Finish(p.out, item.at, item.column, v);
}

// The B operands of a slice. Elements [32 pair, 32 pair + 32) of block b of
// the slice, rows 8 nt .. 8 nt + 7 of the pass: those of two steps.
template <XType X, int NT, XSource kSource>
class XOperand {
 public:
  __device__ __forceinline__ XOperand(const SmallParams& p, const char* staged,
                                      int row0, int rows, int block0)
      : p_(p), row_(row0 + threadIdx.x % 32 / 4), block0_(block0) {
    if constexpr (KeepsX(kSource)) {
#pragma unroll
      for (int nt = 0; nt < NT; ++nt) {
        const int row = nt * 8 + threadIdx.x % 8;
        const bool there = row < rows;
        step_[nt] = there ? kBlockK * 2 : 0;
        at_[nt] = SharedAddress(staged) + threadIdx.x % 32 / 8 * 16 +
                  (there ? row * StagedRowBytes(p.blocks_k) + block0 * step_[nt]
                         : p.zero_at);
      }
    }
    if constexpr (kSource == XSource::kRegisters) {
#pragma unroll
      for (int nt = 0; nt < NT; ++nt) {
#pragma unroll
        for (int pair = 0; pair < 8; ++pair) {
          LdMatrix4(held_[nt][pair], at_[nt] + pair * 64);
        }
      }
    }
  }

  __device__ __forceinline__ void Load(int nt, int b, int pair,
                                       uint32_t (&to)[4]) const {
    if constexpr (kSource == XSource::kRegisters) {
#pragma unroll
      for (int j = 0; j < 4; ++j) to[j] = held_[nt][pair][j];
    } else if constexpr (kSource == XSource::kShared) {
      LdMatrix4(to, at_[nt] + b * step_[nt] + pair * 64);
    } else {
      const int row = row_ + nt * 8;
      const int k = (block0_ + b) * kBlockK + pair * 32 + threadIdx.x % 4 * 2;
      const char* from = p_.x + row * p_.ldx_bytes + k * 2;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        to[j] = row < p_.m && k + j * 8 < p_.k
                    ? __ldg(reinterpret_cast<const uint32_t*>(from + j * 16))
                    : 0;
        if (k + j * 8 + 1 == p_.k) to[j] &= 0xFFFFu;
        if constexpr (kScalesX<X>) to[j] = ScaleBf16Pair(to[j], kXScalePair);
      }
    }
  }

 private:
  const SmallParams& p_;
  int row_, block0_;
  uint32_t at_[NT], step_[NT];
  uint32_t held_[kSource == XSource::kRegisters ? NT : 1][8][4];
};

// The sums of x of one group, of the lane's two columns. A product with ones,
// as a chain of up to 64 elements; a group of 128 adds two. The order that
// every kernel of the family keeps.
template <typename F, XType X>
class GroupSum {
 public:
  // Step `step` of the group.
  __device__ __forceinline__ void Add(int step, uint32_t b0, uint32_t b1) {
    constexpr uint32_t kOnes[4] = {Ones<X>(), Ones<X>(), Ones<X>(), Ones<X>()};
    Mma<X>(sum_[step * kStepK / kChain], kOnes, b0, b1);
  }
  __device__ __forceinline__ float2 Total() const {
    float2 v = make_float2(sum_[0][0], sum_[0][1]);
    if constexpr (kChains == 2) {
      v = make_float2(__fadd_rn(v.x, sum_[1][0]), __fadd_rn(v.y, sum_[1][1]));
    }
    if constexpr (kScalesX<X>) {
      v = make_float2(v.x * (1 / kXScale), v.y * (1 / kXScale));
    }
    return v;
  }

 private:
  static constexpr int kChain = F::group < 64 ? F::group : 64;
  static constexpr int kChains = F::group / kChain;
  float sum_[kChains][4] = {};
};

// Writes the sums of x of a block's groups, [group][row].
template <typename F, XType X, int NT, XSource kSource>
__device__ __forceinline__ void SumBlock(const XOperand<X, NT, kSource>& x,
                                         int b, float* sums) {
  constexpr int kSteps = F::group / kStepK;
#pragma unroll
  for (int nt = 0; nt < NT; ++nt) {
    GroupSum<F, X> sum[F::kGroupsPerBlock];
#pragma unroll
    for (int pair = 0; pair < 8; ++pair) {
      uint32_t xb[4];
      x.Load(nt, b, pair, xb);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int step = 2 * pair + j;
        sum[step / kSteps].Add(step % kSteps, xb[2 * j], xb[2 * j + 1]);
      }
    }
    if (threadIdx.x % 32 < 4) {
#pragma unroll
      for (int i = 0; i < F::kGroupsPerBlock; ++i) {
        *reinterpret_cast<float2*>(sums + (i * NT + nt) * 8 +
                                   2 * (threadIdx.x % 32)) = sum[i].Total();
      }
    }
  }
}

// Word `step` of a lane's codes of a block.
__device__ __forceinline__ uint32_t Word(const uint4 (&codes)[4], int step) {
  const uint4& quad = codes[step / 4];
  return step % 4 == 0   ? quad.x
         : step % 4 == 1 ? quad.y
         : step % 4 == 2 ? quad.z
                         : quad.w;
}

// F: the W4Format; NT: eights of rows of x in a pass; D: stages of a warp's
// ring.
template <typename F, XType X, int NT, int D, XSource kSource>
__global__ void __launch_bounds__(kSmallMaxThreads, 1)
    W4a16Small(const __grid_constant__ SmallParams p) {
  extern __shared__ __align__(128) char shared[];
  constexpr int kBytes = F::kBlockBytes;
  constexpr int kColumns = NT * 8;
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int slice = threadIdx.x / 32;
  const int tile_lane = threadIdx.y, lanes = blockDim.y;
  const int warp = (tile_lane * blockDim.x + threadIdx.x) / 32;
  const int cta = blockIdx.x, ctas = gridDim.x;

  const int block0 = slice * p.slice_blocks;
  const int blocks = min(p.slice_blocks, p.blocks_k - block0);
  // The lanes of a slice share the staging of its x.
  const int own_block0 = tile_lane * p.lane_blocks;
  const int own_blocks = max(0, min(p.lane_blocks, blocks - own_block0));
  const int own_tiles = (p.runs_each + (cta < p.runs_extra ? 1 : 0))
                        << p.run_log2;
  // The CTA's i-th tile: its runs are every gridDim.x-th.
  const auto tile_of = [&](int i) {
    const int in_run = i & ((1 << p.run_log2) - 1);
    return ((cta + (i >> p.run_log2) * ctas) << p.run_log2) + in_run;
  };
  float* sums = reinterpret_cast<float*>(shared + p.sums_at);
  char* ring = shared + p.ring_at + warp * (D * kBytes);
  float* partial = reinterpret_cast<float*>(shared + p.partial_at);

  const int row0 = blockIdx.y * kColumns;  // one pass
  const int rows = min(kColumns, p.m - row0);

  // The loading end of the ring: the next block of this warp's walk.
  int load_tile = tile_lane, load_block = 0;
  const char* load_from =
      p.blocks +
      static_cast<uint64_t>(static_cast<uint32_t>(tile_of(tile_lane))) *
          p.tile_bytes +
      (slice * p.slice_bytes + lane * 16);
  const auto load = [&](int stage) {
    if (load_tile < own_tiles) {
      const uint32_t to = SharedAddress(ring + stage * kBytes) + lane * 16;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        CopyAsync16(to + i * 512, load_from + i * 512);
      }
      if (lane * 16 < F::kBlockScaleBytes) {
        CopyAsync16(to + kCodeBytes, load_from + kCodeBytes);
      }
      load_from += kBytes;
      if (++load_block == blocks) {
        load_block = 0;
        load_from += p.hop_bytes[load_tile & 1] - blocks * kBytes;
        load_tile += lanes;
      }
    }
    CommitCopies();
  };
  int loaded = 0;
  // Stages asked for before the kernels ahead have ended, which is only worth
  // while with programmatic dependent launch.
#pragma unroll 1
  for (; loaded < p.early_stages; ++loaded) load(loaded);
  WaitForDependency();
  LetDependentsStart();
  // x is asked for before the weights: it is little and needed first, and
  // would queue behind them. It is taken before the second stage of weights
  // is asked for, since a warp stalls on a load while the SM has as many in
  // flight as it can.
  StageX<X> stage_x(p, shared, row0, rows, block0 + own_block0, own_blocks);
  if constexpr (KeepsX(kSource)) stage_x.Load();
  if (loaded == 0) load(loaded++);
  if constexpr (KeepsX(kSource)) {
    // Every slice writes the zeros that it may read.
    *reinterpret_cast<uint4*>(shared + p.zero_at + lane * 16) =
        make_uint4(0, 0, 0, 0);
#pragma unroll 1
    while (stage_x.Store()) stage_x.Load();
    if (p.k % 8 != 0) {
      __syncwarp();
      ZeroTail(p, shared, rows, block0 + own_block0, own_blocks);
    }
  }
#pragma unroll 1
  for (; loaded < D; ++loaded) load(loaded);
  const auto sync_slice = [&] {
    if (lanes == 1) {
      __syncwarp();
    } else {
      BarrierOf(1 + slice, lanes * 32);
    }
  };
  sync_slice();
  const XOperand<X, NT, kSource> x_operand(p, shared, row0, rows, block0);
  constexpr bool kSumsAgain = kNeedsSums<F> && kSource == XSource::kNowhere;
  constexpr bool kKeepsSums = kNeedsSums<F> && !kSumsAgain;
  if constexpr (kKeepsSums) {
#pragma unroll 1
    for (int b = own_block0; b < own_block0 + own_blocks; ++b) {
      SumBlock<F>(x_operand, b,
                  sums + (block0 + b) * F::kGroupsPerBlock * kColumns);
    }
    sync_slice();
  }

  const int threads = blockDim.x * lanes, slices = blockDim.x / 32;
  int stage = 0;
  // Every `epoch` tiles all warps meet.
#pragma unroll 1
  for (int begin = 0; begin < own_tiles; begin += p.epoch) {
    const int count = min(p.epoch, own_tiles - begin);
    int index = warp * 32 + lane;
    const auto item_of = [&] {
      return ReduceItem(p, partial, slices, begin, count, row0, rows, index,
                        tile_of);
    };
    const ReduceItem first = item_of();
#pragma unroll 1
    for (int i = tile_lane; i < count; i += lanes) {
      float y[NT][4] = {};
#pragma unroll 1
      for (int b = 0; b < blocks; ++b) {
        WaitCopies<D - 1>();
        __syncwarp();
        const char* block = ring + stage * kBytes;
        uint4 codes[4];
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          codes[q] = LoadShared16(block + q * 512 + lane * 16);
        }
        const BlockScales<F, X> scales(block + kCodeBytes, g);
        __syncwarp();
        load(stage);  // the block is in registers: its stage is free
        stage = stage + 1 == D ? 0 : stage + 1;
        const float* sum =
            sums + (block0 + b) * F::kGroupsPerBlock * kColumns + 2 * t;
        // Two groups take turns: each is one chain of dependent products.
        constexpr int kSteps = F::group / kStepK;
#pragma unroll
        for (int i = 0; i < F::kGroupsPerBlock; i += 2) {
          float acc[2][NT][4] = {};
          uint32_t xb[2][NT][4];  // x of two steps
          GroupSum<F, X> group_sum[kSumsAgain ? 2 : 1][kSumsAgain ? NT : 1];
#pragma unroll
          for (int s = 0; s < 2 * kSteps; ++s) {
            const int turn = s % 2, step = (i + turn) * kSteps + s / 2;
            uint32_t a[4];
            Decode<F, X>(Word(codes, step), a);
#pragma unroll
            for (int nt = 0; nt < NT; ++nt) {
              // With groups of one step, both share a load.
              uint32_t(&x)[4] = xb[kSteps == 1 ? 0 : turn][nt];
              if (step % 2 == 0) x_operand.Load(nt, b, step / 2, x);
              Mma<X>(acc[turn][nt], a, x[step % 2 * 2], x[step % 2 * 2 + 1]);
              if constexpr (kSumsAgain) {
                group_sum[turn][nt].Add(s / 2, x[step % 2 * 2],
                                        x[step % 2 * 2 + 1]);
              }
            }
          }
#pragma unroll
          for (int turn = 0; turn < 2; ++turn) {
            const GroupScale scale = scales.At(i + turn);
#pragma unroll
            for (int nt = 0; nt < NT; ++nt) {
              float2 s = {};
              if constexpr (kSumsAgain) s = group_sum[turn][nt].Total();
              if constexpr (kKeepsSums) {
                s = *reinterpret_cast<const float2*>(
                    sum + (i + turn) * kColumns + nt * 8);
              }
              AddGroup<F, X>(scale, acc[turn][nt], s, y[nt]);
            }
          }
        }
      }
      float* to = partial + (i * slices + slice) * (rows * kPartialPitch) + g;
#pragma unroll
      for (int nt = 0; nt < NT; ++nt) {
        const int column = nt * 8 + 2 * t;
        if (column < rows) {
          to[column * kPartialPitch] = y[nt][0];
          to[column * kPartialPitch + 8] = y[nt][2];
        }
        if (column + 1 < rows) {
          to[(column + 1) * kPartialPitch] = y[nt][1];
          to[(column + 1) * kPartialPitch + 8] = y[nt][3];
        }
      }
    }
    __syncthreads();
    Reduce(p, first, slices, rows);
    const int outputs = (count >> p.run_log2) * rows * kTileRows;
#pragma unroll 1
    for (index += threads; index < outputs; index += threads) {
      Reduce(p, item_of(), slices, rows);
    }
    if (begin + p.epoch < own_tiles) __syncthreads();
  }
}

}  // namespace nibble::kernels::cuda
