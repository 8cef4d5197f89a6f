// What the host decides about a launch of the W4A16 kernel for few rows
// (w4a16_small.cuh). No CUDA in here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/linear/w4_output.h"
#include "kernels/cuda/linear/w4a16.h"
#include "kernels/linear.h"

namespace nibble::kernels::cuda {

// Where the kernel takes its B operands, x, from.
enum class XSource : uint8_t {
  kRegisters,  // a slice of one block, held by the warp for all its tiles
  kShared,     // by ldmatrix from the staged rows
  kGlobal,     // from L2: where shared memory cannot hold x
  kNowhere,    // as kGlobal, and sums of groups are made again for each tile:
               // no part of x is kept, whatever k is
};

// Whether rows of x are brought to shared memory.
constexpr bool KeepsX(XSource source) {
  return source == XSource::kRegisters || source == XSource::kShared;
}

// What the kernel does about the kernels ahead of it in the stream.
enum class Dependency : uint8_t {
  kNone,          // they have ended: there is nothing to wait for
  kWait,          // programmatic dependent launch
  kWeightsFirst,  // and a stage of weights is asked for before the wait
};

// The kernel's parameters. By value. Lines of constant memory, 64 bytes, are
// waited for in turn, some 400 clocks each: the first load of x needs none but
// the first 48 bytes, which share a line with what the compiler itself reads.
struct SmallParams {
  const char* x;        // [m, k], 16-bit
  int64_t ldx_bytes;    // from row to row
  const char* blocks;   // packed weights
  uint32_t tile_bytes;  // of blocks_k blocks
  int k;
  int last_row;          // the last at which a pass may begin
  uint8_t slices;        // of k
  uint8_t cta_slices;    // warps of a CTA along k
  uint8_t lane_rows;     // rows of x that a lane stages: in turn with others
  uint8_t full_lanes;    // so many lanes; the others one less
  uint8_t cluster_log2;  // a team is 2^cluster_log2 CTAs
  uint8_t run_log2;      // tiles that must stay together: 1, or 2 (kSiluMul)
  bool x_along_k;        // a lane walks blocks of k first, rows if not
  Dependency dependency;
  int slice_blocks;  // blocks of a slice

  // How x is staged.
  int64_t x_inner_step;  // bytes of x from piece to piece the way that a lane
  int64_t x_outer_step;  // walks first, and the other; and in shared memory:
  int x_inner_to, x_outer_to;
  int cta_blocks;     // blocks of k that a CTA has at most
  int rows;           // of x in a pass
  uint8_t lanes;      // warps of a CTA along tiles
  uint8_t rows_log2;  // of `rows`, rounded up
  bool partial_on_x;  // partial sums lie where x was
  // Weights.
  int ctas;              // along tiles of W
  int runs_each;         // every team owns so many runs of tiles,
  int runs_extra;        // the first so many teams one more
  int blocks_k;          // blocks along k
  uint32_t slice_bytes;  // of slice_blocks blocks
  // Offsets in shared memory, bytes; x stands at 0.
  int ring_at, zero_at, sums_at, done_at, partial_at;
  // Bytes from a tile to the one that a warp walks next, for even and odd tiles
  // of the team's list.
  int64_t hop_bytes[2];
  // Results.
  int epoch;               // tiles between two reductions, a multiple of lanes
  int partial_tile_bytes;  // partial sums of all slices of a tile
  int m;
  float tensor_scale;
  Output out;
};
static_assert(offsetof(SmallParams, x_inner_step) == 48);

inline constexpr int kSmallMaxThreads = 512;
inline constexpr int kTileRowsLog2 = 4;
static_assert(1 << kTileRowsLog2 == kTileRows);
inline constexpr int kZeroBytes = kBlockK * 2;  // stands for absent rows of x
inline constexpr int kBarrierBytes = 16;

// Bytes of a staged row of x: 16 more than a multiple of 128, so that the
// eight rows of an ldmatrix fall into different banks.
constexpr int StagedRowBytes(int blocks) { return blocks * kBlockK * 2 + 16; }

// The template arguments of the kernel beside format and type of x. By value.
struct SmallVariant {
  int nt;      // a CTA serves 8 * nt rows of x
  int stages;  // of a warp's ring
  XSource source;
  bool cluster = false;  // made for clusters, not for single CTAs

  bool operator==(const SmallVariant&) const = default;
};

// The variants compiled for every format (inst/). A deeper ring than two pays
// for some shapes at one row tile only; from L2 the weights never wait.
inline constexpr std::array<SmallVariant, 14> kSmallVariants = {{
    {1, 2, XSource::kRegisters},
    {1, 3, XSource::kRegisters},
    {1, 2, XSource::kShared},
    {1, 3, XSource::kShared},
    {2, 2, XSource::kRegisters},
    {2, 2, XSource::kShared},
    {4, 2, XSource::kShared},
    {1, 2, XSource::kGlobal},
    {2, 2, XSource::kGlobal},
    {1, 1, XSource::kNowhere},
    {1, 2, XSource::kRegisters, true},
    {1, 2, XSource::kShared, true},
    {2, 2, XSource::kRegisters, true},
    {2, 2, XSource::kShared, true},
}};

// The numbers of CTAs that may share slices of k.
inline constexpr std::array<int, 4> kClusters = {1, 2, 4, 8};

// One way to launch the kernel. By value.
struct SmallConfig {
  SmallVariant variant;
  int lanes;  // warps of a CTA that share a slice of k, each with its own tiles
  int cluster = 1;  // CTAs that share the slices of k, one of kClusters

  bool operator==(const SmallConfig&) const = default;
};

// The spec that prints a config, and back; nothing where it names another
// kernel or a variant that is not compiled.
LaunchSpec SmallSpec(const SmallConfig& config);
std::optional<SmallConfig> ParseSmallSpec(const LaunchSpec& spec);

// A launch but for the pointers. By value.
struct SmallLaunch {
  SmallParams params;  // pointers, steps of x, out, tensor_scale, m: unset
  int ctas = 0;        // along tiles of W, whole clusters
  int slices = 0;      // warps of a CTA along k
  int lanes = 0;
  int shared_bytes = 0;
};

// How `config` runs a matrix on m rows, or nothing where it cannot. Clusters
// need compute capability 9.0 and code compiled for it. `teams`: of those that
// run at the same time, where it is known; whether there is a plan does not
// depend on it.
std::optional<SmallLaunch> PlanSmall(
    const W4Weights& w, int64_t m, W4Epilogue epilogue,
    const SmallConfig& config, const DeviceInfo& device,
    int teams = std::numeric_limits<int>::max());

// Whether it pays to ask for weights before the kernel ahead has ended.
bool AsksEarly(const SmallLaunch& launch, const W4Layout& layout,
               const SmallConfig& config);

// The configs worth trying, the best guess first; empty only beyond the limits
// that PlanSmall knows. clusters: whether their code is compiled.
std::vector<SmallConfig> SmallConfigs(const W4Weights& w, int64_t m,
                                      W4Epilogue epilogue,
                                      const DeviceInfo& device, bool clusters);

// Enqueues it; needs CUDA (w4a16_launch.cc).
void LaunchSmall(const W4Args& args, const SmallConfig& config,
                 const DeviceInfo& device, CUstream_st* stream,
                 const W4LaunchOptions& options);

}  // namespace nibble::kernels::cuda
