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
  Output out;
  float tensor_scale;
  int m;
  int tiles;         // of 16 rows of W
  int blocks_k;      // blocks along k
  int slice_blocks;  // blocks of a slice
  int slices;
  // Warpgroups of a CTA: row_tiles (64 rows of W each) times k_parts. CTAs of
  // a cluster: `multicast` along rows of W, which share the loads of x, times
  // k_ctas (1 or 2) along k. All powers of two, given by their logarithms,
  // since divisions would hold up the first loads.
  int row_tiles_log2, k_parts_log2, multicast_log2, k_ctas_log2;
  int x_stages;     // stages of x for each part of k
  int given_slots;  // slots for slices from CTA 1 along k
  // Work items of clusters: row clusters times column tiles of x, `raster`
  // column tiles at a time.
  int work;
  int raster_work;  // raster * row clusters
  int raster;
  FastDivide by_raster_work, by_raster;
  // Offsets in shared memory, bytes; x stands at 0.
  int sums_at, total_at, given_at, ring_at, barriers_at;
};

inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kWarpgroupRows = 64;
inline constexpr int kChunkK = 64;  // k of a 128-byte swizzled row of x

// Elements along k of a stage of x, [k / 64][columns][64]: up to 32 KB.
constexpr int StageK(int columns) { return columns == 128 ? 128 : kBlockK; }
constexpr int StageBytes(int columns) { return StageK(columns) * columns * 2; }

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

// Where the total of a warpgroup's tile is while its slices are summed.
enum class MidTotal : uint8_t {
  kShared,  // in shared memory, where several warpgroups can add to it
  kHeld,    // in registers
  kFused,   // in registers, and a slice's sum in none: for slices of one block
            // of two groups
};

// The template arguments of the kernel beside format and type of x. By value.
struct MidVariant {
  int columns;     // rows of x a tile covers
  int warpgroups;  // that compute, of a CTA
  int depth;       // blocks in a warp's ring, one of them being read
  bool prepared;   // x is prepared by a kernel ahead (w4a16_prepare.cuh)
  MidTotal total;

  bool operator==(const MidVariant&) const = default;
};

// The variants compiled for every format (inst/), but kFused for groups of 128
// alone.
inline constexpr std::array<MidVariant, 10> kMidVariants = {{
    {16, 4, 4, false, MidTotal::kShared},
    {16, 4, 4, true, MidTotal::kHeld},
    {16, 4, 4, true, MidTotal::kShared},
    {32, 4, 4, false, MidTotal::kShared},
    {32, 4, 4, true, MidTotal::kHeld},
    {32, 4, 4, true, MidTotal::kShared},
    {64, 2, 4, true, MidTotal::kHeld},
    {64, 2, 4, true, MidTotal::kShared},
    {128, 2, 3, true, MidTotal::kFused},
    {128, 2, 3, true, MidTotal::kHeld},
}};

// One way to launch the kernel. By value.
struct MidConfig {
  MidVariant variant;
  int row_tiles;  // see MidParams
  int multicast;
  int k_ctas;
};

// The spec that prints a config, and back; nothing where it names another
// kernel or a variant that is not compiled.
LaunchSpec MidSpec(const MidConfig& config);
std::optional<MidConfig> ParseMidSpec(const LaunchSpec& spec);

// A launch but for the pointers. By value.
struct MidLaunch {
  MidParams params;  // blocks, sums, out, tensor_scale: unset
  int ctas = 0;
  int cluster_ctas = 0;
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

// Where prepared x and its sums are in W4Args::scratch. By value.
struct MidScratch {
  int64_t x_pitch;  // elements of a row of x, [m, k]
  int64_t sums_at;  // bytes; [column tile][group of k][SumsPitch]
  int64_t total_bytes;
};
MidScratch LayOutMidScratch(int64_t m, int64_t k);

// Whether this build has the kernel; LaunchMid is fatal where it has not.
bool MidIsCompiled();

// Enqueues it; needs CUDA (w4a16_mid_launch.cc).
void LaunchMid(const W4Args& args, const MidConfig& config,
               const DeviceInfo& device, CUstream_st* stream,
               const W4LaunchOptions& options);

}  // namespace nibble::kernels::cuda
