// x in the W4A16 kernel for few rows: from global to shared memory, from there
// to operands of mma, and the sums of its groups.
#pragma once

#include "kernels/cuda/linear/mma.cuh"
#include "kernels/cuda/linear/w4_decode.cuh"
#include "kernels/cuda/linear/w4a16_small.h"

namespace nibble::kernels::cuda {

// Sixteen bytes from global memory where i < end, or whatever the registers
// held; a predicate instead of a branch.
__device__ __forceinline__ uint4 LoadBelow(int i, int end, const void* p) {
  uint4 v;
  asm volatile(
      "{.reg .pred p;\n"
      "setp.lt.s32 p,%5,%6;\n"
      "@p ld.global.nc.v4.b32 {%0,%1,%2,%3},[%4];}"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p), "r"(i), "r"(end));
  return v;
}

// Brings a slice's part of the pass's rows of x to shared memory; what lies
// beyond k must be cleared (ZeroTail). Through registers: for lines that every
// SM asks for at the same time plain loads are several times as fast as
// cp.async or bulk copies (docs/kernels.md). A warp takes 256 elements of a row
// at a time; the lanes of a slice take rows in turn. A warp's pieces are an
// array of rows x blocks, of which it walks the longer side first, kBatch loads
// in flight.
template <XType X>
class StageX {
 public:
  // Blocks [first, first + count) of k.
  __device__ __forceinline__ StageX(const SmallParams& p, int row0, int first,
                                    int count)
      : p_(p),
        from_(p.x + (row0 + static_cast<int>(threadIdx.y)) * p.ldx_bytes +
              At(first)) {
    const int rows = p.lane_rows - (threadIdx.y >= p.full_lanes ? 1 : 0);
    inner_ = p.x_along_k ? count : rows;
    outer_ = p.x_along_k ? rows : count;
    // Blocks in which the lane's 16 bytes of a row are not all beyond k; none
    // where the lane has no row.
    blocks_ = rows == 0 ? 0 : (p.k * 2 - At(first) + kRun - 1) >> kRunLog2;
  }

  __device__ __forceinline__ void Load() {
    const int left = inner_ - inner_at_;
    const int end =
        p_.x_along_k ? blocks_ - inner_at_ : (outer_at_ < blocks_ ? kBatch : 0);
    const char* from = from_;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (i >= left) break;  // the same for the whole warp
      batch_[i] = LoadBelow(i, end, from);
      from += p_.x_inner_step;
    }
  }
  // Before the first Store: in the CTA's shared memory the blocks begin with
  // block `to_first`.
  __device__ __forceinline__ void StoreTo(char* staged, int to_first) {
    to_ = staged + threadIdx.y * StagedRowBytes(p_.cta_blocks) + At(to_first);
  }
  // False when nothing is left.
  __device__ __forceinline__ bool Store() {
    char* to = to_;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (i >= inner_ - inner_at_) break;  // the same for the whole warp
      *reinterpret_cast<uint4*>(to) = Scaled<X>(batch_[i]);
      to += p_.x_inner_to;
    }
    inner_at_ += kBatch;
    to_ += kBatch * p_.x_inner_to;
    from_ += kBatch * p_.x_inner_step;
    if (inner_at_ >= inner_) {
      from_ += p_.x_outer_step - inner_at_ * p_.x_inner_step;
      to_ += p_.x_outer_to - inner_at_ * p_.x_inner_to;
      inner_at_ = 0;
      ++outer_at_;
    }
    return outer_at_ < outer_;
  }
  // Whether there is anything to bring.
  __device__ __forceinline__ bool Any() const {
    return inner_ > 0 && outer_ > 0;
  }

 private:
  static constexpr int kBatch = 8;
  static constexpr int kRunLog2 = 9;
  static constexpr int kRun = kBlockK * 2;  // bytes that a warp takes at once
  static_assert(kRun == 1 << kRunLog2);
  __device__ static int At(int block) {
    return threadIdx.x % 32 * 16 + block * kRun;
  }

  const SmallParams& p_;
  const char* from_;
  char* to_;
  int inner_, outer_, blocks_, inner_at_ = 0, outer_at_ = 0;
  uint4 batch_[kBatch];
};

// Clears staged x from k to the end of its block; by one warp of the slice,
// which has blocks [first, first + count).
static __device__ __noinline__ void ZeroTail(const SmallParams& p, char* staged,
                                             int first, int to_first,
                                             int count) {
  const int block = p.k / kBlockK - first;
  if (block < 0 || block >= count) return;
  for (int row = 0; row < p.rows; ++row) {
    char* from = staged + row * StagedRowBytes(p.cta_blocks) +
                 (to_first + block) * (kBlockK * 2);
    for (int i = p.k % kBlockK + threadIdx.x % 32; i < kBlockK; i += 32) {
      *reinterpret_cast<uint16_t*>(from + i * 2) = 0;
    }
  }
}

// The B operands of a slice. Elements [32 pair, 32 pair + 32) of block b of
// the slice, rows 8 nt .. 8 nt + 7 of the pass: those of two steps.
template <XType X, int NT, XSource kSource>
class XOperand {
 public:
  // The slice begins with block `first` of k, in shared memory with `to_first`.
  // skip: rows of the pass that are left out.
  __device__ __forceinline__ XOperand(const SmallParams& p, const char* staged,
                                      int row0, int first, int to_first,
                                      int skip = 0)
      : p_(p), row_(row0 + skip + threadIdx.x % 32 / 4), first_(first) {
    if constexpr (KeepsX(kSource)) {
#pragma unroll
      for (int nt = 0; nt < NT; ++nt) {
        const int row = skip + nt * 8 + threadIdx.x % 8;
        const bool there = row < p.rows;
        step_[nt] = there ? kBlockK * 2 : 0;
        at_[nt] =
            SharedAddress(staged) + threadIdx.x % 32 / 8 * 16 +
            (there ? row * StagedRowBytes(p.cta_blocks) + to_first * step_[nt]
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
      const int k = (first_ + b) * kBlockK + pair * 32 + threadIdx.x % 4 * 2;
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
  int row_, first_;
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

// Writes the sums of x of a block's groups for eight rows of x to
// sums, a row of 8 * kEights floats for each group. `at`: the eight's
// number in the operand.
template <typename F, int kEights, XType X, int NT, XSource kSource>
__device__ __forceinline__ void SumBlock(const XOperand<X, NT, kSource>& x,
                                         int at, int b, float* sums) {
  constexpr int kSteps = F::group / kStepK;
  GroupSum<F, X> sum[F::kGroupsPerBlock];
#pragma unroll
  for (int pair = 0; pair < 8; ++pair) {
    uint32_t xb[4];
    x.Load(at, b, pair, xb);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int step = 2 * pair + j;
      sum[step / kSteps].Add(step % kSteps, xb[2 * j], xb[2 * j + 1]);
    }
  }
  if (threadIdx.x % 32 < 4) {
#pragma unroll
    for (int i = 0; i < F::kGroupsPerBlock; ++i) {
      *reinterpret_cast<float2*>(sums + (i * kEights + at) * 8 +
                                 2 * (threadIdx.x % 32)) = sum[i].Total();
    }
  }
}

}  // namespace nibble::kernels::cuda
