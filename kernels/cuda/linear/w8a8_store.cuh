// The end of the W8A8 kernels: from sums to y. A tile is shared by warpgroups
// or by warps, each with a part of its own: of T::kPartThreads threads. Warp w
// of them has rows 16 w to 16 w + 15 of each of the part's row parts.
#pragma once

#include "kernels/cuda/linear/half_pairs.cuh"
#include "kernels/cuda/linear/mma.cuh"
#include "kernels/cuda/linear/w8a8_plan.h"

namespace nibble::kernels::cuda {

// Four bytes from global to shared memory without a register between; zeros,
// and nothing is read, where there is nothing.
__device__ __forceinline__ void CopyAsync4If(bool there, uint32_t shared,
                                             const void* p) {
  asm volatile("cp.async.ca.shared.global [%0],[%1],4,%2;" ::"r"(shared),
               "l"(p), "r"(there ? 4 : 0)
               : "memory");
}

// 16 bytes likewise, the first `bytes` of them; zeros follow.
__device__ __forceinline__ void CopyAsync16Of(int bytes, uint32_t shared,
                                              const void* p) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(shared),
               "l"(p), "r"(bytes)
               : "memory");
}

// A number from global memory, or none; a predicate instead of a branch.
__device__ __forceinline__ void LoadFloatIf(bool there, const float* p,
                                            float& v) {
  asm volatile(
      "{.reg .pred p;\n"
      "setp.ne.b32 p,%2,0;\n"
      "@p ld.global.cg.f32 %0,[%1];}"
      : "+f"(v)
      : "l"(p), "r"(static_cast<int>(there)));
}

// What is needed of the columns of a part of a tile: in shared memory, [part
// columns] each. By value.
template <typename T>
struct W8Vectors {
  static constexpr int kColumns = T::kTile.PartColumns();
  const float* scales;
  const float* bias;
  const int32_t* sums;  // kInt8Group: the bits of floats

  __device__ __forceinline__ W8Vectors(char* shared, int part) {
    auto* const at = reinterpret_cast<float*>(shared + T::kShared.vectors_at) +
                     part * 3 * kColumns;
    scales = at;
    bias = at + kColumns;
    sums = reinterpret_cast<const int32_t*>(at + 2 * kColumns);
  }
  // Asks for them; WaitCopies<0> and a barrier later they are there.
  __device__ __forceinline__ void Fetch(const W8Params& p, int column0) const {
#pragma unroll
    for (int c = 0; c < kColumns; c += T::kPartThreads) {
      const int at = c + threadIdx.x % T::kPartThreads;
      const int64_t column = column0 + at;
      if (kColumns % T::kPartThreads != 0 && at >= kColumns) break;
      const bool there = column < p.n;
      if constexpr (!T::kBlockScales && !T::kGroupScales) {
        CopyAsync4If(there, SharedAddress(scales + at),
                     p.w_scales + column * p.w_scale_step);
      }
      CopyAsync4If(there && p.bias != nullptr, SharedAddress(bias + at),
                   p.bias + column);
      if constexpr (T::kKind == W8Kind::kInt8 || T::kGroupScales) {
        CopyAsync4If(there && p.x_zeros != nullptr, SharedAddress(sums + at),
                     static_cast<const int32_t*>(p.w_sums) + column);
      }
    }
    CommitCopies();
  }
};

// The rows of a thread: kRowParts times two, eight apart. By value.
template <typename T>
struct W8Rows {
  int first;  // of the first part, in y
  float scales[T::kRowParts][2];

  // Asks for their scales.
  __device__ __forceinline__ void Fetch(const W8Params& p, int row0) {
    const int thread = threadIdx.x % T::kPartThreads;
    first = row0 + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int i = 0; i < T::kRowParts; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        scales[i][half] = 1;
        if constexpr (!T::kBlockScales) {
          const int64_t row = At(i, half);
          LoadFloatIf(row < p.m, p.x_scales + row * p.x_scale_step,
                      scales[i][half]);
        }
      }
    }
  }
  __device__ __forceinline__ int At(int part, int half) const {
    return first + part * (T::kPartThreads / 2) + half * 8;
  }
};

// 16 bytes to global memory, or nothing; a predicate instead of a branch.
__device__ __forceinline__ void StoreGlobal16If(bool there, void* p, uint4 v) {
  asm volatile(
      "{.reg .pred p;\n"
      "setp.ne.b32 p,%5,0;\n"
      "@p st.global.v4.b32 [%0],{%1,%2,%3,%4};}" ::"l"(p),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(static_cast<int>(there))
      : "memory");
}

template <typename Pair>
__device__ __forceinline__ uint4 PackEight(const float (&v)[8]) {
  return make_uint4(PackPair<Pair>(v[0], v[1]), PackPair<Pair>(v[2], v[3]),
                    PackPair<Pair>(v[4], v[5]), PackPair<Pair>(v[6], v[7]));
}

// Eight neighbours of a 16-bit type, aligned.
template <typename Pair>
__device__ __forceinline__ void StoreEight16(char* y, const char* residual,
                                             float (&v)[8]) {
  if (residual != nullptr) {
    const uint4 r = *reinterpret_cast<const uint4*>(residual);
    const uint32_t words[4] = {r.x, r.y, r.z, r.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = UnpackPair<Pair>(words[i]);
      v[2 * i] = __fadd_rn(v[2 * i], pair.x);
      v[2 * i + 1] = __fadd_rn(v[2 * i + 1], pair.y);
    }
  }
  *reinterpret_cast<uint4*>(y) = PackEight<Pair>(v);
}
__device__ __forceinline__ void StoreEight32(char* y, const char* residual,
                                             float (&v)[8]) {
  if (residual != nullptr) {
    const auto* r = reinterpret_cast<const float4*>(residual);
    const float4 low = r[0], high = r[1];
    const float added[8] = {low.x,  low.y,  low.z,  low.w,
                            high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = __fadd_rn(v[i], added[i]);
  }
  auto* to = reinterpret_cast<float4*>(y);
  to[0] = make_float4(v[0], v[1], v[2], v[3]);
  to[1] = make_float4(v[4], v[5], v[6], v[7]);
}

// One output, of any type.
__device__ __forceinline__ void StoreOne(DType dtype, char* y,
                                         const char* residual, float v) {
  if (dtype == DType::kBF16) {
    if (residual != nullptr) {
      v = __fadd_rn(v, __bfloat162float(
                           *reinterpret_cast<const __nv_bfloat16*>(residual)));
    }
    *reinterpret_cast<__nv_bfloat16*>(y) = __float2bfloat16_rn(v);
  } else if (dtype == DType::kF16) {
    if (residual != nullptr) {
      v = __fadd_rn(v,
                    __half2float(*reinterpret_cast<const __half*>(residual)));
    }
    *reinterpret_cast<__half*>(y) = __float2half_rn(v);
  } else {
    if (residual != nullptr) {
      v = __fadd_rn(v, *reinterpret_cast<const float*>(residual));
    }
    *reinterpret_cast<float*>(y) = v;
  }
}

// Eight neighbours in a row of y from `column` on, which ends at column `end`.
__device__ __forceinline__ void StoreEight(const W8Params& p, int64_t row,
                                           int column, int end, float (&v)[8]) {
  const int size = p.y_dtype == DType::kF32 ? 4 : 2;
  char* const y = static_cast<char*>(p.y) + (row * p.ldy + column) * size;
  const char* const residual = p.residual == nullptr
                                   ? nullptr
                                   : static_cast<const char*>(p.residual) +
                                         (row * p.ld_residual + column) * size;
  if (p.wide && column + 8 <= end) {
    if (p.y_dtype == DType::kBF16) {
      StoreEight16<__nv_bfloat162>(y, residual, v);
    } else if (p.y_dtype == DType::kF16) {
      StoreEight16<__half2>(y, residual, v);
    } else {
      StoreEight32(y, residual, v);
    }
    return;
  }
  const int columns = min(8, end - column);
#pragma unroll 1
  for (int i = 0; i < columns; ++i) {
    // An index known only here would send v to memory.
    float one = v[0];
#pragma unroll
    for (int j = 1; j < 8; ++j) one = i == j ? v[j] : one;
    StoreOne(p.y_dtype, y + i * size,
             residual == nullptr ? nullptr : residual + i * size, one);
  }
}

// Four neighbours in shared memory, or eight.
__device__ __forceinline__ void LoadFour(const float* shared, float (&v)[4]) {
  const uint4 bits = LoadShared16At(SharedAddress(shared));
  v[0] = __uint_as_float(bits.x);
  v[1] = __uint_as_float(bits.y);
  v[2] = __uint_as_float(bits.z);
  v[3] = __uint_as_float(bits.w);
}
__device__ __forceinline__ void LoadEight(const float* shared, float (&v)[8]) {
  float low[4], high[4];
  LoadFour(shared, low);
  LoadFour(shared + 4, high);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[i] = low[i];
    v[4 + i] = high[i];
  }
}

// A sum without what a zero point of x adds to it: the zero point times the
// column's number of W8Vectors::sums.
__device__ __forceinline__ uint32_t WithoutZero(uint32_t sum, int zero,
                                                uint32_t of_column) {
  return sum - static_cast<uint32_t>(zero) * of_column;
}
__device__ __forceinline__ float WithoutZero(float sum, int zero,
                                             uint32_t of_column) {
  return __fmaf_rn(-__int2float_rn(zero), __uint_as_float(of_column), sum);
}

// Takes the zero points of x out of sums. Those of kInt8 that wrap around on
// the way come back: the result is in range.
template <typename T>
__device__ __forceinline__ void SubtractZeros(const W8Params& p,
                                              const W8Rows<T>& rows,
                                              const W8Vectors<T>& vectors,
                                              typename T::Sums& sums) {
  int zeros[T::kRowParts][2];
#pragma unroll
  for (int i = 0; i < T::kRowParts; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = rows.At(i, half);
      zeros[i][half] = row < p.m ? __ldcg(p.x_zeros + row) : 0;
    }
  }
#pragma unroll
  for (int pair = 0; pair < T::kColumnParts * T::kTiles / 2; ++pair) {
    const int column =
        pair / 2 * 32 + static_cast<int>(threadIdx.x) % 4 * 8 + pair % 2 * 4;
    const uint4 w = LoadShared16At(SharedAddress(vectors.sums + column));
    const uint32_t of_columns[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < T::kRowParts; ++i) {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int tile = 2 * pair + e / 4;
        auto& sum = sums[i][tile / T::kTiles][tile % T::kTiles][e % 4];
        sum = WithoutZero(sum, zeros[i][e % 4 / 2],
                          of_columns[e / 4 * 2 + e % 2]);
      }
    }
  }
}

// A sum before its scales.
template <typename T>
__device__ __forceinline__ float ToFloat(typename T::Number sum) {
  if constexpr (T::kKind == W8Kind::kInt8) {
    return __int2float_rn(static_cast<int>(sum));
  } else if constexpr (T::kPromoted) {
    return sum;
  } else {
    return __uint_as_float(sum);
  }
}

// What a thread's outputs of a group of 32 columns need of the columns: read
// once for all of its rows. By value.
template <typename T, bool kBias>
struct W8Columns {
  static constexpr bool kScales = !T::kBlockScales && !T::kGroupScales;
  float scales[kScales ? 8 : 1];
  float bias[kBias ? 8 : 1];

  __device__ __forceinline__ W8Columns(const W8Vectors<T>& vectors, int group) {
    const int at = group * 32 + static_cast<int>(threadIdx.x) % 4 * 8;
    if constexpr (kScales) LoadEight(vectors.scales + at, scales);
    if constexpr (kBias) LoadEight(vectors.bias + at, bias);
  }
};

// Eight outputs of a thread, neighbours in one of its rows; all but the
// residual.
template <typename T, bool kBias>
__device__ __forceinline__ void Finish(
    const W8Columns<T, kBias>& columns, int group, float row_scale, int half,
    const typename T::Number (&sums)[T::kColumnParts][T::kTiles][4],
    float (&v)[8]) {
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const int tile = group * 4 + e / 2;
    const float sum =
        ToFloat<T>(sums[tile / T::kTiles][tile % T::kTiles][2 * half + e % 2]);
    float scale = row_scale, bias = 0;
    if constexpr (W8Columns<T, kBias>::kScales) {
      scale = __fmul_rn(columns.scales[e], row_scale);
    }
    if constexpr (kBias) bias = columns.bias[e];
    v[e] = T::kBlockScales ? __fadd_rn(sum, bias) : __fmaf_rn(sum, scale, bias);
  }
}

// Eight outputs of a thread in BF16, neighbours in one of its rows; no
// residual.
template <typename T, bool kBias>
__device__ __forceinline__ uint4 FinishPlain(
    const W8Columns<T, kBias>& columns, int group, float row_scale, int half,
    const typename T::Number (&sums)[T::kColumnParts][T::kTiles][4]) {
  float v[8];
  Finish<T, kBias>(columns, group, row_scale, half, sums, v);
  return PackEight<__nv_bfloat162>(v);
}

// The plain outputs of a thread in y (W8Params::plain). By value.
template <typename T>
struct W8PlainRows {
  __nv_bfloat16* y;  // of the first row

  __device__ __forceinline__ void Point(const W8Params& p,
                                        const W8Rows<T>& rows, int first) {
    y = static_cast<__nv_bfloat16*>(p.y) + rows.At(0, 0) * p.ldy + first;
  }
  // Of row `half` of `part`.
  __device__ __forceinline__ void Store(const W8Params& p, bool there, int part,
                                        int half, int group,
                                        uint4 eight) const {
    const int row = part * (T::kPartThreads / 2) + half * 8;
    StoreGlobal16If(there, y + row * p.ldy + group * 32, eight);
  }
};

// Stores a part of a tile that ends in y, in BF16 and no residual. No branches,
// so that loads and stores overlap.
template <typename T, bool kBias>
__device__ __forceinline__ void StorePlain(const W8Params& p,
                                           const W8Rows<T>& rows,
                                           const W8Vectors<T>& vectors,
                                           int first,
                                           const typename T::Sums& sums) {
  W8PlainRows<T> to;
  to.Point(p, rows, first);
#pragma unroll
  for (int group = 0; group < T::kTile.PartColumns() / 32; ++group) {
    const W8Columns<T, kBias> columns(vectors, group);
#pragma unroll
    for (int i = 0; i < T::kRowParts; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        to.Store(p, rows.At(i, half) < p.m, i, half, group,
                 FinishPlain<T, kBias>(columns, group, rows.scales[i][half],
                                       half, sums[i]));
      }
    }
  }
}

// Plain outputs of a part of a tile, kept in registers until the tensor cores
// are busy with the next one.
template <typename T>
class W8Held {
 public:
  // What StorePlain would store.
  template <bool kBias>
  __device__ __forceinline__ void Take(const W8Params& p, const W8Rows<T>& rows,
                                       const W8Vectors<T>& vectors, int first,
                                       const typename T::Sums& sums) {
    to_.Point(p, rows, first);
    left_ = p.m - rows.first;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const W8Columns<T, kBias> columns(vectors, group);
#pragma unroll
      for (int i = 0; i < T::kRowParts; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          eights_[i][half][group] = FinishPlain<T, kBias>(
              columns, group, rows.scales[i][half], half, sums[i]);
        }
      }
    }
  }
  // Holds nothing. What it held before takes no registers from the last Store
  // to here, or to the next Take.
  __device__ __forceinline__ void Clear() {
    left_ = 0;
    to_.y = nullptr;
#pragma unroll
    for (int i = 0; i < T::kRowParts; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          eights_[i][half][group] = uint4{};
        }
      }
    }
  }
  // Stores what there is, or the kPart-th of kParts parts of it.
  template <int kPart = 0, int kParts = 1>
  __device__ __forceinline__ void Store(const W8Params& p) {
    static_assert(T::kRowParts * kGroups * 2 % kParts == 0);
    constexpr int kStores = T::kRowParts * kGroups * 2 / kParts;
#pragma unroll
    for (int at = kPart * kStores; at < (kPart + 1) * kStores; ++at) {
      const int i = at / (2 * kGroups), half = at / kGroups % 2;
      const bool there = i * (T::kPartThreads / 2) + half * 8 < left_;
      to_.Store(p, there, i, half, at % kGroups,
                eights_[i][half][at % kGroups]);
    }
  }

 private:
  static constexpr int kGroups = T::kTile.PartColumns() / 32;
  uint4 eights_[T::kRowParts][2][kGroups];
  W8PlainRows<T> to_;
  int left_;  // rows from the thread's first one to the end; 0: nothing
};

// Whether a part of a tile at `column0` has plain outputs, and in y only.
template <typename T>
__device__ __forceinline__ bool IsPlain(const W8Params& p, int column0) {
  return p.plain && column0 + T::kTile.PartColumns() <= p.n;
}

// Keeps the plain outputs of a part of a tile, whose columns begin at
// `column0`.
template <typename T>
__device__ __forceinline__ void HoldPart(
    const W8Params& p, const W8Rows<T>& rows, const W8Vectors<T>& vectors,
    int column0, const typename T::Sums& sums, W8Held<T>& held) {
  const int first = column0 + static_cast<int>(threadIdx.x) % 4 * 8;
  if (p.bias == nullptr) {
    held.template Take<false>(p, rows, vectors, first, sums);
  } else {
    held.template Take<true>(p, rows, vectors, first, sums);
  }
}

// Stores a part of a tile, whose columns begin at `column0`. Packed rows of W
// (W8PackedRow) make a thread's columns eights of neighbours.
template <typename T>
__device__ __forceinline__ void StorePart(const W8Params& p,
                                          const W8Rows<T>& rows,
                                          const W8Vectors<T>& vectors,
                                          int column0,
                                          const typename T::Sums& sums) {
  constexpr int kGroups = T::kTile.PartColumns() / 32;
  const int first = column0 + static_cast<int>(threadIdx.x) % 4 * 8;
  if (IsPlain<T>(p, column0)) {
    if (p.bias == nullptr) {
      StorePlain<T, false>(p, rows, vectors, first, sums);
    } else {
      StorePlain<T, true>(p, rows, vectors, first, sums);
    }
    return;
  }
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const int column = first + group * 32;
    if (column >= p.n) continue;
    const W8Columns<T, true> columns(vectors, group);
#pragma unroll
    for (int i = 0; i < T::kRowParts; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = rows.At(i, half);
        if (row >= p.m) continue;
        float v[8];
        Finish<T, true>(columns, group, rows.scales[i][half], half, sums[i], v);
        StoreEight(p, row, column, p.n, v);
      }
    }
  }
}

}  // namespace nibble::kernels::cuda
