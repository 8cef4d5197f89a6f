// The W8A8 kernel for every device: INT8 from compute capability 8.0 on, FP8
// from 8.9 on. A CTA has one tile of y; its warps bring x and W, k = 128 a
// step, into a ring of stages (cp.async), and have a part of the tile each,
// which they multiply (mma.sync) and store.
//
//   stage:  x [rows][128]  W [columns][128]   16-byte pieces of a row swizzled:
//                                             piece c stands at c ^ (row % 8)
//
// Of a step a warp keeps all of its W in registers, and brings x past it, 16
// rows at a time. Sums are those of the kernel for Hopper (w8a8.cuh): INT32 or,
// for kE4m3Fast, FP32 ones over all of k; else those of a step, added in FP32,
// ascending.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/linear/mma.cuh"
#include "kernels/cuda/linear/mma_8bit.cuh"
#include "kernels/cuda/linear/w8a8_plan.h"
#include "kernels/cuda/linear/w8a8_store.cuh"

namespace nibble::kernels::cuda {

// A kind and a tile as a type.
template <W8Kind kKindOf, W8Tile kTileOf>
struct W8MmaKernel {
  static constexpr W8Kind kKind = kKindOf;
  static constexpr W8Tile kTile = kTileOf;
  static_assert(kTile.schedule == W8Schedule::kMma);
  static constexpr W8Shared kShared = LayOutW8Mma(kKind, kTile);
  static constexpr int kStages = kShared.stages;
  static constexpr int kXBytes = kTile.rows * static_cast<int>(kW8BlockK);
  static constexpr int kPartThreads = 32;
  static constexpr int kThreads = kTile.CtaWarps() * kPartThreads;

  static constexpr bool kBlockScales = kKind == W8Kind::kE4m3Block;
  static constexpr bool kGroupScales = kKind == W8Kind::kInt8Group;
  static constexpr bool kPromoted = IsPromoted(kKind);
  // A warp's part of a tile: products of 16 rows and eight columns.
  static constexpr int kRowParts = kTile.PartRows() / 16;
  static constexpr int kColumnParts = 1;
  static constexpr int kTiles = kTile.PartColumns() / 8;
  static_assert(kTile.PartRows() % 16 == 0 && kTiles % 2 == 0);
  static_assert(kW8BlockN % kTile.columns == 0,
                "a tile has one scale of W a step");
  // A thread's sums, [row part][column part][eight of columns][4].
  using Number = std::conditional_t<kPromoted, float, uint32_t>;
  using Sums = Number[kRowParts][kColumnParts][kTiles][4];
};

inline constexpr int kW8Step = static_cast<int>(kW8BlockK);  // bytes of a row
inline constexpr int kW8Piece = 16;                          // bytes
inline constexpr int kW8ProductK = 32;                       // of one mma.sync

// A thread's share of the copies of a tile's steps: the same piece of rows a
// fixed number apart. By value.
template <typename T>
class W8MmaLoader {
 public:
  __device__ __forceinline__ W8MmaLoader(const W8Params& p,
                                         const W8Codes& codes,
                                         const W8Place& place, char* shared)
      : p_(p), codes_(codes), place_(place) {
    const int piece = static_cast<int>(threadIdx.x) % kPieces;
    row_ = static_cast<int>(threadIdx.x) / kPieces;
    k_ = piece * kW8Piece;
    shared_ = SharedAddress(shared) + row_ * kW8Step;
    scales_ = SharedAddress(shared) + T::kShared.scales_at;
    x_rows_ = p.m - place.row - row_;
    w_rows_ = codes.w_rows - place.column - row_;
    x_ = codes.x + (int64_t{place.row} + row_) * codes.x_pitch + k_;
    w_ = codes.w + (int64_t{place.column} + row_) * codes.w_pitch + k_;
  }

  __device__ __forceinline__ void LoadX(int block, int stage) const {
    Load<T::kTile.rows>(block, x_, codes_.x_pitch, x_rows_,
                        shared_ + stage * T::kShared.stage_bytes);
  }
  __device__ __forceinline__ void LoadW(int block, int stage) const {
    Load<T::kTile.columns>(
        block, w_, codes_.w_pitch, w_rows_,
        shared_ + stage * T::kShared.stage_bytes + T::kXBytes);
  }
  // Of the step's rows of x or columns of W.
  __device__ __forceinline__ void LoadScales(int block, int stage) const {
    if constexpr (T::kBlockScales) {
      CopyScales<T::kTile.rows>(block, stage, p_.x_scales, p_.x_scales_pitch,
                                place_.row);
    } else if constexpr (T::kGroupScales) {
      CopyScales<T::kTile.columns>(block, stage, p_.w_scales, p_.w_scales_pitch,
                                   place_.column);
    }
  }

 private:
  static constexpr int kPieces = kW8Step / kW8Piece;
  static constexpr int kRowsAtOnce = T::kThreads / kPieces;

  // There are `rows` rows from `from` on; zeros stand for others, and for what
  // lies behind k.
  template <int kRows>
  __device__ __forceinline__ void Load(int block, const char* from,
                                       int64_t pitch, int rows,
                                       uint32_t to) const {
    static_assert(kRows % kRowsAtOnce == 0);
    const int k = block * kW8Step + k_;
    const int bytes = min(max(codes_.k - k, 0), kW8Piece);
#pragma unroll
    for (int row = 0; row < kRows; row += kRowsAtOnce) {
      const int swizzled = k_ ^ (row_ + row) % 8 * kW8Piece;
      CopyAsync16Of(row < rows ? bytes : 0, to + row * kW8Step + swizzled,
                    from + row * pitch + int64_t{block} * kW8Step);
    }
  }

  // scales[block][first ... first + kCount - 1], of which those at `pitch` and
  // beyond do not exist; 16 bytes a thread.
  template <int kCount>
  __device__ __forceinline__ void CopyScales(int block, int stage,
                                             const float* scales, int64_t pitch,
                                             int first) const {
    static_assert(kCount <= 4 * T::kThreads);
    const int at = static_cast<int>(threadIdx.x) * 4;
    if (at >= kCount) return;
    const bool there = first + at < pitch && block < p_.k_blocks;
    CopyAsync16Of(there ? kW8Piece : 0, scales_ + (stage * kCount + at) * 4,
                  scales + block * pitch + first + at);
  }

  const W8Params& p_;
  const W8Codes& codes_;
  const W8Place& place_;
  const char *x_, *w_;   // the thread's piece of its first row
  uint32_t shared_;      // that row in stage 0
  uint32_t scales_;      // of stage 0
  int row_, k_;          // in the tile, in a step
  int x_rows_, w_rows_;  // from that row on
};

// What a thread's sums of a step are multiplied with: the scales of its rows of
// x and of the tile's block of W (kE4m3Block), or of its eight columns
// (kInt8Group). By value.
template <typename T>
struct W8StepScales {
  float x[T::kRowParts][2];
  float w[8];

  // From the scales of a stage, shared memory; w_block: kE4m3Block.
  __device__ __forceinline__ W8StepScales(const float* shared, float w_block,
                                          int row0, int column0) {
    const int lane = threadIdx.x % 32;
    if constexpr (T::kBlockScales) {
#pragma unroll
      for (int i = 0; i < T::kRowParts; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          x[i][half] =
              __fmul_rn(shared[row0 + lane / 4 + i * 16 + half * 8], w_block);
        }
      }
    } else if constexpr (T::kGroupScales) {
      const float* const at = shared + column0 + lane % 4 * 8;
#pragma unroll
      for (int i = 0; i < 8; ++i) w[i] = at[i];
    }
  }

  // `sum` and the products of a step: number e of the eight of columns `tile`
  // of a row part.
  __device__ __forceinline__ float Add(float sum, uint32_t step, int row_part,
                                       int tile, int e) const {
    if constexpr (T::kBlockScales) {
      return __fmaf_rn(__uint_as_float(step), x[row_part][e / 2], sum);
    } else if constexpr (T::kGroupScales) {
      return __fmaf_rn(__int2float_rn(static_cast<int>(step)),
                       w[2 * tile + e % 2], sum);
    } else {
      return __fadd_rn(sum, __uint_as_float(step));
    }
  }
};

// A warp's operands in shared memory. By value.
template <typename T>
class W8MmaOperands {
 public:
  __device__ __forceinline__ W8MmaOperands(char* shared, int row0,
                                           int column0) {
    const int lane = threadIdx.x % 32;
    const uint32_t at = SharedAddress(shared);
    // Rows that ldmatrix takes from a lane, and the piece it begins with.
    x_ =
        at + (row0 + lane % 16) * kW8Step + ((lane / 16 ^ lane % 8) * kW8Piece);
    w_ = at + T::kXBytes + (column0 + lane % 8 + lane / 16 * 8) * kW8Step +
         ((lane / 8 % 2 ^ lane % 8) * kW8Piece);
  }

  // A[16, 32] of a row part, from k = 32 `product` of a stage on.
  __device__ __forceinline__ void LoadX(int stage, int row_part, int product,
                                        uint32_t (&a)[4]) const {
    LdMatrix4(a, (x_ ^ product * kW8ProductK) + stage * T::kShared.stage_bytes +
                     row_part * 16 * kW8Step);
  }
  // B[8, 32] of two neighbouring eights of columns: words 0, 1 and 2, 3.
  __device__ __forceinline__ void LoadW(int stage, int pair, int product,
                                        uint32_t (&b)[4]) const {
    LdMatrix4(b, (w_ ^ product * kW8ProductK) + stage * T::kShared.stage_bytes +
                     pair * 16 * kW8Step);
  }

 private:
  uint32_t x_, w_;
};

// Adds the products of a step.
template <typename T>
__device__ __forceinline__ void MultiplyStep(const W8MmaOperands<T>& operands,
                                             int stage,
                                             const W8StepScales<T>& scales,
                                             typename T::Sums& sums) {
  constexpr int kProducts = kW8Step / kW8ProductK;
  uint32_t b[kProducts][T::kTiles / 2][4];
#pragma unroll
  for (int product = 0; product < kProducts; ++product) {
#pragma unroll
    for (int pair = 0; pair < T::kTiles / 2; ++pair) {
      operands.LoadW(stage, pair, product, b[product][pair]);
    }
  }
#pragma unroll
  for (int i = 0; i < T::kRowParts; ++i) {
    uint32_t step[T::kTiles][4] = {};
#pragma unroll
    for (int product = 0; product < kProducts; ++product) {
      uint32_t a[4];
      operands.LoadX(stage, i, product, a);
#pragma unroll
      for (int tile = 0; tile < T::kTiles; ++tile) {
        const uint32_t* const words = b[product][tile / 2] + tile % 2 * 2;
        if constexpr (T::kPromoted) {
          Mma8<T::kKind>(step[tile], a, words[0], words[1]);
        } else {
          Mma8<T::kKind>(sums[i][0][tile], a, words[0], words[1]);
        }
      }
    }
    if constexpr (T::kPromoted) {
#pragma unroll
      for (int tile = 0; tile < T::kTiles; ++tile) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& sum = sums[i][0][tile][e];
          sum = scales.Add(sum, step[tile][e], i, tile, e);
        }
      }
    }
  }
}

// The scale of W of a step of a tile; kE4m3Block.
template <typename T>
__device__ __forceinline__ float BlockScale(const W8Params& p,
                                            const W8Place& place, int block) {
  if constexpr (!T::kBlockScales) return 1;
  const int row = place.column / static_cast<int>(kW8BlockN);
  return __ldg(p.w_scales + int64_t{row} * p.k_blocks +
               min(block, p.k_blocks - 1));
}

template <typename T>
__global__ void __launch_bounds__(T::kThreads)
    W8a8Mma(const __grid_constant__ W8Params p,
            const __grid_constant__ W8Codes codes) {
  extern __shared__ __align__(1024) char shared[];
  constexpr int kAhead = T::kStages - 1;  // steps asked for before their turn
  constexpr int kAcross = T::kTile.columns / T::kTile.PartColumns();
  LetDependentsStart();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row0 = warp / kAcross * T::kTile.PartRows();
  const int column0 = warp % kAcross * T::kTile.PartColumns();
  const bool multiplies = warp < T::kTile.Warps();
  const W8Place place =
      PlaceW8(p, T::kTile, static_cast<int>(blockIdx.x), /*rank=*/0);

  // W is no other kernel's result.
  const W8MmaLoader<T> loader(p, codes, place, shared);
#pragma unroll
  for (int block = 0; block < kAhead; ++block) loader.LoadW(block, block);
  WaitForDependency();
  // Warps below each other share them.
  const W8Vectors<T> vectors(shared, warp % kAcross);
  if (warp < kAcross) vectors.Fetch(p, place.column + column0);
#pragma unroll
  for (int block = 0; block < kAhead; ++block) {
    loader.LoadX(block, block);
    loader.LoadScales(block, block);
    CommitCopies();
  }
  W8Rows<T> rows;
  rows.Fetch(p, place.row + row0);
  const W8MmaOperands<T> operands(shared, row0, column0);
  const auto* const scales =
      reinterpret_cast<const float*>(shared + T::kShared.scales_at);
  constexpr int kStageScales =
      T::kBlockScales ? T::kTile.rows : T::kTile.columns;
  float next_scale = BlockScale<T>(p, place, 0);
  typename T::Sums sums = {};
  int stage = 0, free_stage = kAhead;
#pragma unroll 1
  for (int block = 0; block < p.k_blocks; ++block) {
    // The step is there, and nobody reads the one before.
    WaitCopies<kAhead - 1>();
    __syncthreads();
    if (block + kAhead < p.k_blocks) {
      loader.LoadX(block + kAhead, free_stage);
      loader.LoadW(block + kAhead, free_stage);
      loader.LoadScales(block + kAhead, free_stage);
    }
    CommitCopies();
    const float w_scale = next_scale;
    next_scale = BlockScale<T>(p, place, block + 1);
    if (multiplies) {
      const W8StepScales<T> step_scales(scales + stage * kStageScales, w_scale,
                                        row0, column0);
      MultiplyStep<T>(operands, stage, step_scales, sums);
    }
    free_stage = stage;
    if (++stage == T::kStages) stage = 0;
  }
  if (!multiplies) return;
  if constexpr (T::kKind == W8Kind::kInt8 || T::kGroupScales) {
    if (p.x_zeros != nullptr) SubtractZeros<T>(p, rows, vectors, sums);
  }
  StorePart<T>(p, rows, vectors, place.column + column0, sums);
}

}  // namespace nibble::kernels::cuda
