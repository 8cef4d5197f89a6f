// What the host decides about a launch of the W4A8 kernel (w4a8.cuh), which
// needs Hopper. No CUDA in here.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernels/cuda/device.h"
#include "kernels/cuda/linear/w4a16_mid.h"  // FastDivide
#include "kernels/cuda/linear/w4a8.h"

namespace nibble::kernels::cuda {

// Rows of x ("columns" of a tile) that kernels of a format are compiled for
// (inst/), the most first. Sums that are drained into FP32 ones need registers
// for both.
inline constexpr int kW4a8ChainColumns[] = {256, 128, 64, 32};
inline constexpr int kW4a8DrainColumns[] = {128, 64, 32};
inline constexpr int kW4a8SubScaleColumns[] = {96, 64, 32};
std::span<const int> W4a8Columns(W4a8Format format);

inline constexpr int kW4a8Warpgroups = 2;  // that compute
inline constexpr int kW4a8MaxStages = 12;
// Shared memory of a CTA on compute capability 9.0.
inline constexpr int kW4a8SharedBytes = 227 << 10;

// Where things are in shared memory, bytes. By value.
struct W4a8Shared {
  int stages;       // of x, [columns][128]
  int w_at;         // blocks [stages][warpgroup]
  int x_scales_at;  // float [warpgroup][columns]
  int barriers_at;  // full [stages], empty [stages]
  int bytes;
};
constexpr W4a8Shared LayOutW4a8(W4a8Format format, int columns) {
  W4a8Shared shared{};
  constexpr int kStageBarriers = 2 * 8;
  const int x_bytes = columns * kW4a8StageK;
  const int w_bytes = kW4a8Warpgroups * format.BlockBytes();
  const int scales = kW4a8Warpgroups * columns * 4;
  shared.stages =
      (kW4a8SharedBytes - scales) / (x_bytes + w_bytes + kStageBarriers);
  if (shared.stages > kW4a8MaxStages) shared.stages = kW4a8MaxStages;
  shared.w_at = shared.stages * x_bytes;
  shared.x_scales_at = shared.w_at + shared.stages * w_bytes;
  shared.barriers_at = shared.x_scales_at + scales;
  shared.bytes = shared.barriers_at + shared.stages * kStageBarriers;
  return shared;
}

// The kernel's parameters beside the tensor maps of x and its sums. By value.
struct W4a8Params {
  const std::byte* w;
  const float* row_scales;   // kRerounded
  const float* row_offsets;  // HasOffsets
  const float* x_scales;
  const float* bias;     // or null
  const void* residual;  // or null
  void* y;
  int64_t ldy, ld_residual;  // elements
  DType y_dtype;
  bool wide;  // fours of outputs of 16 bits are aligned, of the residual too
  int m, n;
  int min_stages, k_pairs;
  int x_box;  // rows of x in one tensor copy
  // Tiles of y are walked `raster` tiles of x at a time, so that x and W stay
  // in L2.
  int row_tiles, column_tiles, raster;
  FastDivide by_raster_items;     // raster * row_tiles
  FastDivide by_raster, by_last;  // tiles of x in a raster, in the last one
};

// Which tile of W and which of x a work item multiplies. By value.
struct W4a8Place {
  int row_tile, column_tile;
};
constexpr W4a8Place PlaceW4a8(const W4a8Params& p, int item) {
  const int raster = p.by_raster_items(item);
  const int first = raster * p.raster;
  const int left = p.column_tiles - first;
  const int columns = left < p.raster ? left : p.raster;
  const int rest = item - first * p.row_tiles;
  const int row = left < p.raster ? p.by_last(rest) : p.by_raster(rest);
  return {.row_tile = row, .column_tile = first + rest - row * columns};
}

// A launch but for the pointers and what is said of them. By value.
struct W4a8Launch {
  W4a8Params params;
  int ctas = 0;
  int shared_bytes = 0;
};

LaunchSpec W4a8Spec(W4a8Format format, int columns);
// The columns that a spec names; nothing where it names another kernel.
std::optional<int> ParseW4a8Spec(W4a8Format format, const LaunchSpec& spec);

// How tiles of so many columns run a problem; nothing where they cannot.
std::optional<W4a8Launch> PlanW4a8(const W4a8Problem& problem, int columns,
                                   const DeviceInfo& device);

// Whether this build has the kernels; LaunchW4a8 is fatal where it has not.
bool W4a8IsCompiled();

}  // namespace nibble::kernels::cuda
