// What the host decides about a launch of the W4A16 kernel for many rows
// (w4a16_mid.cuh), which needs Hopper. No CUDA in here.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/linear/w4_output.h"
#include "kernels/cuda/linear/w4a16.h"
#include "kernels/linear.h"

namespace nibble::kernels::cuda {

// n / d of n < 2^31 by a product, d >= 1. By value.
struct FastDivide {
  uint32_t multiplier = 1u << 31;
  int shift = 31;

  constexpr int operator()(int n) const {
    return static_cast<int>(
        (static_cast<uint64_t>(static_cast<uint32_t>(n)) * multiplier) >>
        shift);
  }
};
FastDivide DivideBy(int64_t d);

// The kernel's parameters beside the tensor map of x. By value.
struct MidParams {
  const char* blocks;  // packed weights
  const float* sums;   // of prepared x (MidScratch), or null
  float* partials;     // MidScratch
  uint32_t* arrived;   // MidScratch
  Output out;
  float tensor_scale;
  int m;
  int tiles;           // of 16 rows of W
  int blocks_k;        // blocks along k
  int slice_blocks;    // blocks of a slice
  int quarter_blocks;  // blocks of a quarter of the slices
  int part_blocks;     // blocks of a part: of 4, 2 or 1 quarters
  int x_stages;
  // Work items: row tiles of W times column tiles of x, `raster` column tiles
  // at a time, times 1 << parts_log2 parts of k, neighbours.
  int work;
  int parts_log2;
  int raster_items;  // raster * row tiles
  int raster;
  FastDivide by_raster_items, by_raster;
  // Offsets in shared memory, bytes; x stands at 0.
  int sums_at, stash_at, ring_at, barriers_at;
};

inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kWarpgroupRows = 64;
inline constexpr int kMidWarpgroups = 2;  // that compute, of a CTA
inline constexpr int kMidRows = kMidWarpgroups * kWarpgroupRows;
// One more warpgroup helps: a warp of it brings x and one the weights.
inline constexpr int kMidThreads = (kMidWarpgroups + 1) * kWarpgroupThreads;
inline constexpr int kChunkK = 64;  // k of a 128-byte swizzled row of x

// Elements along k of a stage of x, [k / 64][columns][64]: 16 KB.
constexpr int StageK(int columns) { return 8192 / columns; }
constexpr int StageBytes(int columns) { return StageK(columns) * columns * 2; }
constexpr int BlockStages(int columns) { return kBlockK / StageK(columns); }
// Blocks whose sums are kept: those of the stages, and one more, since sums are
// used longer than x.
constexpr int SumSlots(int columns, int x_stages) {
  return (x_stages + BlockStages(columns) - 1) / BlockStages(columns) + 1;
}

// Floats that the sums of a group of x take: as threads want them, those of
// lane t, which holds columns 8 i + 2 t and 8 i + 2 t + 1, together, and 16
// bytes of padding between lanes so that the four fall into different banks.
constexpr int SumsPitch(int columns) { return columns + 16; }
constexpr int SumAt(int columns, int column) {
  return column % 8 / 2 * (SumsPitch(columns) / 4) + column / 8 * 2 +
         column % 2;
}
// Floats of a column of 64 totals, 4 modulo 16: stores of fragments meet no
// bank conflicts, and columns stay aligned for 16-byte loads.
inline constexpr int kTotalPitch = kWarpgroupRows + 4;

// The template arguments of the kernel beside format and type of x. By value.
struct MidVariant {
  int columns;  // rows of x a tile covers
  int depth;    // blocks in a warpgroup's ring of weights
  bool fused;   // slices of one block of two groups: no sum of a slice is kept

  bool operator==(const MidVariant&) const = default;
};

// The variants compiled for every format (inst/), but fused ones for groups of
// 128 alone.
inline constexpr std::array<MidVariant, 6> kMidVariants = {{
    {32, 5, true},
    {32, 5, false},
    {64, 4, true},
    {64, 4, false},
    {128, 3, true},
    {128, 3, false},
}};

// One way to launch the kernel. By value.
struct MidConfig {
  MidVariant variant;
  int parts;  // of k, in CTAs of their own: 1, 2 or 4
};

// The spec that prints a config, and back; nothing where it names another
// kernel or a variant that is not compiled.
LaunchSpec MidSpec(const MidConfig& config);
std::optional<MidConfig> ParseMidSpec(const LaunchSpec& spec);

// A launch but for the pointers. By value.
struct MidLaunch {
  MidParams
      params;  // blocks, sums, partials, arrived, out, tensor_scale: unset
  int ctas = 0;
  int threads = 0;
  int shared_bytes = 0;
};

// How `config` runs a matrix on m rows, or nothing where it cannot.
std::optional<MidLaunch> PlanMid(const W4Weights& w, int64_t m,
                                 W4Epilogue epilogue, const MidConfig& config,
                                 const DeviceInfo& device);

// The configs worth trying, the best guess first; empty where none can run.
std::vector<MidConfig> MidConfigs(const W4Weights& w, int64_t m,
                                  W4Epilogue epilogue,
                                  const DeviceInfo& device);

// Where prepared x, its sums, and what parts of k leave for each other are in
// W4Args::scratch. By value.
struct MidScratch {
  int64_t x_pitch;     // elements of a row of x, [m, k]
  int64_t sums_at;     // bytes; [column tile][group of k][SumsPitch]
  int64_t arrived_at;  // bytes; uint32 [tile][warpgroup]
  // bytes; float [tile][4][warpgroup][columns / 8][thread][4]
  int64_t partials_at;
  int64_t total_bytes;
};
MidScratch LayOutMidScratch(int64_t m, int64_t k);

// Tiles of the result whose k may be split.
inline constexpr int kMaxSplitItems = 64;

// Whether this build has the kernel; LaunchMid is fatal where it has not.
bool MidIsCompiled();

// Enqueues it; needs CUDA (w4a16_mid_launch.cc).
void LaunchMid(const W4Args& args, const MidConfig& config,
               const DeviceInfo& device, CUstream_st* stream,
               const W4LaunchOptions& options);

}  // namespace nibble::kernels::cuda
