// What the host decides about a launch of the W4A16 kernel for few rows
// (w4a16_small.cuh). No CUDA in here.
#pragma once

#include <array>
#include <cstdint>
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

// The kernel's parameters. By value.
struct SmallParams {
  const char* blocks;  // packed weights
  const char* x;       // [m, k], 16-bit
  int64_t ldx_bytes;
  Output out;
  float tensor_scale;
  int m;
  int k;
  int run_log2;          // tiles that must stay in one CTA: 1, or 2 (kSiluMul)
  int runs_each;         // every CTA owns so many runs of tiles,
  int runs_extra;        // the first so many CTAs one more
  int blocks_k;          // blocks along k
  int slice_blocks;      // blocks of a slice
  int lane_blocks;       // of those, that one of the lanes stages x of
  uint32_t tile_bytes;   // blocks_k * block bytes
  uint32_t slice_bytes;  // slice_blocks * block bytes
  // Bytes from a tile to the one that a warp walks next, for even and odd tiles
  // of the CTA's list.
  int64_t hop_bytes[2];
  int epoch;         // tiles between two reductions, a multiple of the lanes
  int early_stages;  // ring stages filled before the dependency wait
  // Offsets in shared memory, bytes; x stands at 0.
  int zero_at, sums_at, ring_at, partial_at;
};

inline constexpr int kSmallMaxThreads = 512;
inline constexpr int kZeroBytes = kBlockK * 2;  // stands for absent rows of x
inline constexpr int kPartialPitch = 20;  // floats: 16 rows without conflicts

// Bytes of a staged row of x: 16 more than a multiple of 128, so that the
// eight rows of an ldmatrix fall into different banks.
constexpr int StagedRowBytes(int blocks_k) {
  return blocks_k * kBlockK * 2 + 16;
}

// The template arguments of the kernel beside format and type of x. By value.
struct SmallVariant {
  int nt;      // a CTA serves 8 * nt rows of x
  int stages;  // of a warp's ring
  XSource source;

  bool operator==(const SmallVariant&) const = default;
};

// The variants compiled for every format (inst/). A deeper ring than two pays
// for some shapes at one row tile only; from L2 the weights never wait.
inline constexpr std::array<SmallVariant, 9> kSmallVariants = {{
    {1, 2, XSource::kRegisters},
    {1, 3, XSource::kRegisters},
    {1, 2, XSource::kShared},
    {1, 3, XSource::kShared},
    {2, 2, XSource::kShared},
    {4, 2, XSource::kShared},
    {1, 2, XSource::kGlobal},
    {2, 2, XSource::kGlobal},
    {1, 1, XSource::kNowhere},
}};

// One way to launch the kernel. By value.
struct SmallConfig {
  SmallVariant variant;
  int lanes;  // warps of a CTA that share a slice of k, each with its own tiles
};

// The spec that prints a config, and back; nothing where it names another
// kernel or a variant that is not compiled.
LaunchSpec SmallSpec(const SmallConfig& config, int64_t k);
std::optional<SmallConfig> ParseSmallSpec(const LaunchSpec& spec);

// A launch but for the pointers. By value.
struct SmallLaunch {
  SmallParams params;  // blocks, x, ldx_bytes, out, tensor_scale, m: unset
  int ctas = 0;        // along tiles of W
  int slices = 0;      // warps along k
  int lanes = 0;
  int shared_bytes = 0;
};

// How `config` runs a matrix on m rows, or nothing where it cannot.
std::optional<SmallLaunch> PlanSmall(const W4Weights& w, int64_t m,
                                     W4Epilogue epilogue,
                                     const SmallConfig& config,
                                     const DeviceInfo& device);

// Ring stages that pay when asked for before the kernel ahead has ended.
int EarlyStages(const SmallLaunch& launch, const W4Layout& layout, int64_t m,
                const SmallConfig& config);

// The configs worth trying, the best guess first; empty only beyond the limits
// that PlanSmall knows.
std::vector<SmallConfig> SmallConfigs(const W4Weights& w, int64_t m,
                                      W4Epilogue epilogue,
                                      const DeviceInfo& device);

// Enqueues it; needs CUDA (w4a16_launch.cc).
void LaunchSmall(const W4Args& args, const SmallConfig& config,
                 const DeviceInfo& device, CUstream_st* stream,
                 const W4LaunchOptions& options);

}  // namespace nibble::kernels::cuda
