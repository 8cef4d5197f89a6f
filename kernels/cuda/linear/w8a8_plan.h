// What the host decides about a launch of the W8A8 kernels: that for Hopper
// (w8a8.cuh) and that for other devices (w8a8_mma.cuh). No CUDA in here.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/linear/w4a16_mid.h"  // FastDivide
#include "kernels/cuda/linear/w8a8.h"
#include "kernels/linear.h"

namespace nibble::kernels::cuda {

// How the warpgroups that compute share a CTA's tiles of y.
enum class W8Schedule : uint8_t {
  kRows,      // two: each half of the rows of every tile
  kColumns,   // two: each half of the columns of every tile
  kSingle,    // one
  kPingPong,  // two: a tile each, one multiplies while the other stores
  // No warpgroups, but warps with a part of the tile each (w8a8_mma.cuh): for
  // all devices.
  kMma,
};

// A tile of y: a kernel's template argument beside its kind. By value.
struct W8Tile {
  int rows;     // of x
  int columns;  // rows of W
  W8Schedule schedule;

  bool operator==(const W8Tile&) const = default;

  // The CTAs of a cluster have neighbouring tiles and load half of what they
  // share each: W in flat tiles, x in others.
  constexpr bool SharesW() const { return rows >= 128 && rows <= columns; }
  // More CTAs of flat tiles would leave multiprocessors without work: an H200
  // has room for 66 clusters of two, but for no more than 30 of four.
  constexpr int MaxCluster() const {
    return schedule == W8Schedule::kMma ? 1 : rows >= 128 ? 2 : 4;
  }
  constexpr int Warpgroups() const {
    return schedule == W8Schedule::kSingle ? 1 : 2;
  }
  // Of a warpgroup's part, or a warp's.
  constexpr int PartRows() const {
    if (schedule == W8Schedule::kMma) return rows > 32 ? rows / 2 : rows;
    return schedule == W8Schedule::kRows ? rows / 2 : rows;
  }
  constexpr int PartColumns() const {
    // A thread stores eight columns at once where a warp has 32.
    if (schedule == W8Schedule::kMma) return static_cast<int>(kW8RowGroup);
    return schedule == W8Schedule::kColumns ? columns / 2 : columns;
  }
  // Warps that share the tile, and all of a CTA: one or two alone do not ask
  // for memory fast enough; kMma.
  constexpr int Warps() const {
    return rows / PartRows() * (columns / PartColumns());
  }
  constexpr int CtaWarps() const { return Warps() < 4 ? 4 : Warps(); }
};

// The tiles compiled for a kind on Hopper (inst/). Sums promoted to FP32 want
// the two warpgroups at the same tile, so that one multiplies while the other
// adds.
std::span<const W8Tile> W8Tiles(W8Kind kind);

inline constexpr W8Tile kW8PlainTiles[] = {
    {128, 256, W8Schedule::kRows},     {128, 160, W8Schedule::kPingPong},
    {128, 128, W8Schedule::kPingPong}, {64, 128, W8Schedule::kColumns},
    {64, 64, W8Schedule::kColumns},    {64, 32, W8Schedule::kSingle},
};
inline constexpr W8Tile kW8PromotedTiles[] = {
    {256, 128, W8Schedule::kRows},   {128, 256, W8Schedule::kRows},
    {128, 224, W8Schedule::kRows},   {128, 128, W8Schedule::kRows},
    {64, 128, W8Schedule::kColumns}, {64, 64, W8Schedule::kColumns},
    {64, 32, W8Schedule::kSingle},
};
// A warpgroup's part must not cross a border of blocks of W, or be made of
// parts of wgmma that do not.
inline constexpr W8Tile kW8BlockTiles[] = {
    {256, 128, W8Schedule::kRows},   {128, 128, W8Schedule::kRows},
    {64, 128, W8Schedule::kColumns}, {64, 64, W8Schedule::kColumns},
    {64, 32, W8Schedule::kSingle},
};
inline constexpr W8Tile kW8GroupTiles[] = {
    {128, 256, W8Schedule::kRows},  {128, 192, W8Schedule::kRows},
    {128, 128, W8Schedule::kRows},  {64, 128, W8Schedule::kColumns},
    {64, 64, W8Schedule::kColumns}, {64, 32, W8Schedule::kSingle},
};

// The tiles compiled for every device, and for every kind where the device has
// its type.
inline constexpr W8Tile kW8MmaTiles[] = {
    {128, 128, W8Schedule::kMma},
    {64, 64, W8Schedule::kMma},
    {16, 64, W8Schedule::kMma},
    {16, 32, W8Schedule::kMma},
};

// Those of gate/up weights, of any kind: a part has two units.
inline constexpr W8Tile kW8SiluMulTiles[] = {
    {128, 256, W8Schedule::kRows},
    {64, 256, W8Schedule::kSingle},
};

inline constexpr int kW8WarpgroupThreads = 128;
inline constexpr int kW8MaxStages = 16;
// Shared memory of a CTA on compute capability 9.0.
inline constexpr int kW8SharedBytes = 227 << 10;

// Where things are in shared memory, bytes. By value.
struct W8Shared {
  int stages;  // of x, [rows][128], and W, [columns][128] behind it
  int stage_bytes;
  // kE4m3Block: float [stages][rows], of x; kInt8Group: [stages][columns], of
  // W, and on Hopper twice, those of every other round
  int scales_at;
  int vectors_at;   // float [part, kMma: part across][3][part columns]
  int barriers_at;  // full [stages], empty [stages], turn [2]; Hopper
  int bytes;
};
// Of kMma tiles. A multiprocessor of 100 KB has room for one CTA of the tiles
// of many rows, and for two of the others, which wait for memory.
constexpr W8Shared LayOutW8Mma(W8Kind kind, const W8Tile& tile) {
  W8Shared shared{};
  const int scales = kind == W8Kind::kE4m3Block   ? tile.rows * 4
                     : kind == W8Kind::kInt8Group ? tile.columns * 4
                                                  : 0;
  shared.stages = tile.rows >= 128 ? 3 : tile.columns >= 64 ? 4 : 8;
  shared.stage_bytes = (tile.rows + tile.columns) * static_cast<int>(kW8BlockK);
  shared.scales_at = shared.stages * shared.stage_bytes;
  shared.vectors_at = shared.scales_at + shared.stages * scales;
  shared.bytes = shared.vectors_at + 3 * tile.columns * 4;
  return shared;
}
constexpr W8Shared LayOutW8(W8Kind kind, const W8Tile& tile) {
  if (tile.schedule == W8Schedule::kMma) return LayOutW8Mma(kind, tile);
  W8Shared shared{};
  const int vectors = tile.Warpgroups() * 3 * tile.PartColumns() * 4;
  const int scales = kind == W8Kind::kE4m3Block   ? tile.rows * 4
                     : kind == W8Kind::kInt8Group ? 2 * tile.columns * 4
                                                  : 0;
  constexpr int kStageBarriers = 2 * 8, kTurnBarriers = 2 * 8;
  shared.stage_bytes = (tile.rows + tile.columns) * static_cast<int>(kW8BlockK);
  shared.stages = (kW8SharedBytes - vectors - kTurnBarriers) /
                  (shared.stage_bytes + scales + kStageBarriers);
  if (shared.stages > kW8MaxStages) shared.stages = kW8MaxStages;
  shared.scales_at = shared.stages * shared.stage_bytes;
  shared.vectors_at = shared.scales_at + shared.stages * scales;
  shared.barriers_at = shared.vectors_at + vectors;
  shared.bytes =
      shared.barriers_at + shared.stages * kStageBarriers + kTurnBarriers;
  return shared;
}

// The kernels' parameters but for where the codes of x and W are. By value.
// What the first loads want stands in the first 48 bytes, which share a line of
// constant memory with what the compiler itself reads: the others are cold.
struct W8Params {
  int k_blocks;  // of kW8BlockK
  int cluster;   // CTAs
  int x_box;     // rows of x in one tensor copy
  int w_box;     // rows of W in one tensor copy
  // Work items: the tiles of a cluster's CTAs together, `raster` rows of them
  // at a time, so that x and W stay in L2.
  int row_items, column_items, raster;
  FastDivide by_raster_items;     // raster * column_items
  FastDivide by_raster, by_last;  // rows of items in a raster, in the last one
  int m, n;
  const float* x_scales;
  const float* w_scales;
  int64_t x_scales_pitch;          // kE4m3Block
  int64_t w_scales_pitch;          // kInt8Group
  int x_scale_step, w_scale_step;  // 0: one scale for all
  const int32_t* x_zeros;          // with w_sums, or null
  const void* w_sums;              // int32_t; kInt8Group: float
  const float* bias;               // or null
  const void* residual;            // or null
  void* y;
  int64_t ldy, ld_residual;  // elements
  DType y_dtype;
  bool wide;           // eights of outputs, and of the residual, are aligned
  bool plain;          // that, BF16 and no residual: a store and no more
  W8SiluMul silu_mul;  // of gate/up weights
};

// Where the codes are, for kMma tiles; Hopper has tensor maps. By value.
struct W8Codes {
  const char* x;             // [m, x_pitch]
  const char* w;             // [w_rows, w_pitch]
  int64_t x_pitch, w_pitch;  // bytes
  int w_rows;                // W8PackedRows(n)
  int k;
};

// Where in y the tile of a work item begins that CTA `rank` of the cluster has;
// it may lie outside. By value.
struct W8Place {
  int row, column;
};
constexpr W8Place PlaceW8(const W8Params& p, W8Tile tile, int item, int rank) {
  const int raster = p.by_raster_items(item);
  const int first = raster * p.raster;
  const int left = p.row_items - first;
  const int rows = left < p.raster ? left : p.raster;
  const int rest = item - first * p.column_items;
  const int column_item = left < p.raster ? p.by_last(rest) : p.by_raster(rest);
  const int row_item = first + rest - column_item * rows;
  // The CTAs of a cluster are neighbours along what they do not share.
  const int row = tile.SharesW() ? row_item * p.cluster + rank : row_item;
  const int column =
      tile.SharesW() ? column_item : column_item * p.cluster + rank;
  return {.row = row * tile.rows, .column = column * tile.columns};
}

// One way to launch a kernel. By value.
struct W8Config {
  W8Tile tile;
  int cluster = 1;  // CTAs; 1 of kMma tiles
};

// The spec that prints a config, and back; nothing where it names another
// kernel or a tile that is not compiled.
LaunchSpec W8Spec(W8Kind kind, const W8Config& config);
std::optional<W8Config> ParseW8Spec(W8Kind kind, const LaunchSpec& spec);

// The same of gate/up weights.
LaunchSpec W8SiluMulSpec(W8Kind kind, const W8Config& config);
std::optional<W8Config> ParseW8SiluMulSpec(W8Kind kind, const LaunchSpec& spec);

// A launch but for the pointers and what is said of them. By value.
struct W8Launch {
  W8Params params;
  int ctas = 0;
  int threads = 0;
  int shared_bytes = 0;
};

// How `config` runs a problem where at most `clusters` clusters fit the device
// at once; nothing where it cannot. A kMma tile has a CTA of its own, whatever
// `clusters` is.
std::optional<W8Launch> PlanW8(const W8Problem& problem, const W8Config& config,
                               const DeviceInfo& device, int clusters);
// The same, guessing that the device is full of clusters.
std::optional<W8Launch> PlanW8(const W8Problem& problem, const W8Config& config,
                               const DeviceInfo& device);

// The tiles for a kind on `device`: W8Tiles on Hopper where this build has its
// kernels, else kW8MmaTiles.
std::span<const W8Tile> W8TilesFor(W8Kind kind, const DeviceInfo& device);

// The configs of `tiles` worth trying, the best guess first; empty where none
// can run.
std::vector<W8Config> W8Configs(const W8Problem& problem,
                                const DeviceInfo& device,
                                std::span<const W8Tile> tiles);

// Whether this build has the kernels for Hopper, and those for other devices;
// LaunchW8 is fatal where it has not.
bool W8WgmmaIsCompiled();
bool W8MmaIsCompiled();

}  // namespace nibble::kernels::cuda
