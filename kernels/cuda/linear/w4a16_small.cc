#include "kernels/cuda/linear/w4a16_small.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "base/checked_math.h"

namespace nibble::kernels::cuda {
namespace {

constexpr std::string_view kKernel = "w4a16_small";
constexpr int kMaxWarps = kSmallMaxThreads / 32;
constexpr int64_t kRingAlignment = 128;  // bytes

// What the kernel counts in 32 bits: bytes of a tile, elements of a row times
// two, rows of W.
constexpr int64_t kMaxK = int64_t{1} << 28;
constexpr int64_t kMaxN = (int64_t{1} << 31) - 2 * kTileRows;

constexpr std::array<std::string_view, 4> kSourceNames = {"registers", "shared",
                                                          "global", "nowhere"};

// Where things lie in shared memory, up to the partial sums. By value.
struct SharedLayout {
  int64_t zero_at, sums_at, ring_at, partial_at;
};

SharedLayout LayOut(const W4Layout& layout, const SmallParams& params,
                    const SmallConfig& config, int64_t rows, int64_t warps) {
  const XSource source = config.variant.source;
  SharedLayout at{};
  if (KeepsX(source)) {
    at.zero_at = rows * StagedRowBytes(params.blocks_k);
    at.sums_at = at.zero_at + kZeroBytes;
  }
  int64_t end = at.sums_at;
  if (layout.code == W4Code::kInt4 && source != XSource::kNowhere) {
    end += int64_t{params.blocks_k} * layout.GroupsPerBlock() *
           (config.variant.nt * 8) * static_cast<int64_t>(sizeof(float));
  }
  at.ring_at = RoundUp(end, kRingAlignment);
  at.partial_at =
      at.ring_at + warps * config.variant.stages * layout.BlockBytes();
  return at;
}

// The tiles between two reductions: as many as there is room for, all epochs
// about equal, a multiple of `step`; 0 where there is no room for that.
int64_t EpochTiles(int64_t own_tiles, int64_t room_tiles, int64_t step) {
  const int64_t most = room_tiles / step * step;
  if (most == 0) return 0;
  const int64_t epochs = CeilDiv(own_tiles, most);
  return RoundUp(CeilDiv(own_tiles, epochs), step);
}

// The tiles of the CTA that owns the most.
int64_t OwnTiles(const SmallParams& params) {
  return int64_t{params.runs_each + (params.runs_extra > 0 ? 1 : 0)}
         << params.run_log2;
}

// How tiles are shared out among CTAs, and how far a warp hops.
void ShareOut(int64_t tiles, int64_t ctas, int lanes, SmallParams& params) {
  const int64_t runs = tiles >> params.run_log2;
  params.runs_each = static_cast<int>(runs / ctas);
  params.runs_extra = static_cast<int>(runs % ctas);
  // The i-th tile of CTA 0.
  const auto tile_of = [&](int64_t i) {
    return ((i >> params.run_log2) * ctas << params.run_log2) +
           (i & ((1 << params.run_log2) - 1));
  };
  for (int i = 0; i < 2; ++i) {
    params.hop_bytes[i] = (tile_of(i + lanes) - tile_of(i)) * params.tile_bytes;
  }
}

bool InRange(const W4Weights& w, int64_t m, W4Epilogue epilogue,
             const SmallConfig& config) {
  if (m < 1 || w.n < 1 || w.n > kMaxN || w.k < 1 || w.k > kMaxK) return false;
  if (epilogue == W4Epilogue::kSiluMul && w.n % (2 * kTileRows) != 0) {
    return false;
  }
  if (config.lanes < 1 || config.lanes > kMaxWarps / Slices(w.k)) return false;
  return config.variant.source != XSource::kRegisters || SliceBlocks(w.k) == 1;
}

int64_t Ctas(const W4Weights& w, int run_log2, const DeviceInfo& device) {
  return std::min<int64_t>(device.multiprocessors, Tiles(w.n) >> run_log2);
}

// Numbers of lanes worth trying, most first: fewer leave more room.
std::vector<int> LaneChoices(const W4Weights& w, W4Epilogue epilogue,
                             const DeviceInfo& device) {
  const int run_log2 = epilogue == W4Epilogue::kSiluMul ? 1 : 0;
  const int64_t tiles =
      CeilDiv(Tiles(w.n), std::max<int64_t>(Ctas(w, run_log2, device), 1));
  const int most = static_cast<int>(std::clamp<int64_t>(
      kMaxWarps / Slices(w.k), 1, std::max<int64_t>(tiles, 1)));
  std::vector<int> choices = {most};
  if (most > 3) choices.push_back(most / 2);
  if (most > 1) choices.push_back(1);
  return choices;
}

}  // namespace

LaunchSpec SmallSpec(const SmallConfig& config, int64_t k) {
  const auto source = static_cast<size_t>(config.variant.source);
  return {.kernel = std::string(kKernel),
          .tile_m = config.variant.nt * 8,
          .tile_n = config.lanes,
          .split_k = Slices(k),
          .stages = config.variant.stages,
          .variant = std::string(kSourceNames.at(source))};
}

std::optional<SmallConfig> ParseSmallSpec(const LaunchSpec& spec) {
  if (spec.kernel != kKernel || spec.path != LinearPath::kNarrow ||
      spec.tile_m % 8 != 0) {
    return std::nullopt;
  }
  const auto* name =
      std::find(kSourceNames.begin(), kSourceNames.end(), spec.variant);
  if (name == kSourceNames.end()) return std::nullopt;
  const SmallVariant variant{
      .nt = spec.tile_m / 8,
      .stages = spec.stages,
      .source = static_cast<XSource>(name - kSourceNames.begin())};
  if (std::find(kSmallVariants.begin(), kSmallVariants.end(), variant) ==
      kSmallVariants.end()) {
    return std::nullopt;
  }
  return SmallConfig{variant, spec.tile_n};
}

std::optional<SmallLaunch> PlanSmall(const W4Weights& w, int64_t m,
                                     W4Epilogue epilogue,
                                     const SmallConfig& config,
                                     const DeviceInfo& device) {
  if (!InRange(w, m, epilogue, config)) return std::nullopt;
  SmallLaunch launch;
  launch.slices = Slices(w.k);
  launch.lanes = config.lanes;
  SmallParams& params = launch.params;
  params = {};
  params.k = static_cast<int>(w.k);
  params.run_log2 = epilogue == W4Epilogue::kSiluMul ? 1 : 0;
  params.blocks_k = static_cast<int>(BlocksPerTile(w.k));
  params.slice_blocks = SliceBlocks(w.k);
  params.lane_blocks =
      static_cast<int>(CeilDiv(params.slice_blocks, config.lanes));
  const auto block_bytes = static_cast<uint32_t>(w.layout.BlockBytes());
  params.tile_bytes = params.blocks_k * block_bytes;
  params.slice_bytes = params.slice_blocks * block_bytes;
  launch.ctas = static_cast<int>(Ctas(w, params.run_log2, device));
  if (launch.ctas < 1) return std::nullopt;
  ShareOut(Tiles(w.n), launch.ctas, config.lanes, params);

  const int64_t rows = std::min<int64_t>(m, config.variant.nt * 8);
  const SharedLayout at = LayOut(w.layout, params, config, rows,
                                 int64_t{launch.slices} * config.lanes);
  const int64_t partial_bytes = launch.slices * rows * kPartialPitch *
                                static_cast<int64_t>(sizeof(float));
  const int64_t room = device.shared_memory_bytes - at.partial_at;
  const int64_t step =
      config.lanes % 2 == 0 ? config.lanes : config.lanes << params.run_log2;
  params.epoch = static_cast<int>(EpochTiles(
      OwnTiles(params), std::max<int64_t>(room, 0) / partial_bytes, step));
  if (params.epoch == 0) return std::nullopt;
  params.zero_at = static_cast<int>(at.zero_at);
  params.sums_at = static_cast<int>(at.sums_at);
  params.ring_at = static_cast<int>(at.ring_at);
  params.partial_at = static_cast<int>(at.partial_at);
  launch.shared_bytes =
      static_cast<int>(at.partial_at + params.epoch * partial_bytes);
  return launch;
}

int EarlyStages(const SmallLaunch& launch, const W4Layout& layout, int64_t m,
                const SmallConfig& config) {
  // Measured on an H200: weights asked for early delay x, which the others of
  // this SM wait for. One stage pays where a CTA reads several times as many
  // bytes of weights as of x; two never do.
  constexpr int64_t kWeightsPerX = 4;
  if (!KeepsX(config.variant.source)) return 1;
  const int64_t rows = std::min<int64_t>(m, config.variant.nt * 8);
  const int64_t x_bytes = rows * launch.params.blocks_k * (kBlockK * 2);
  const int64_t weight_bytes =
      OwnTiles(launch.params) * launch.params.blocks_k * layout.BlockBytes();
  return weight_bytes >= kWeightsPerX * x_bytes ? 1 : 0;
}

std::vector<SmallConfig> SmallConfigs(const W4Weights& w, int64_t m,
                                      W4Epilogue epilogue,
                                      const DeviceInfo& device) {
  constexpr int kMaxNt = 4;
  std::vector<SmallConfig> configs;
  if (m < 1 || w.n < 1 || w.k < 1) return configs;
  const std::vector<int> lanes = LaneChoices(w, epilogue, device);
  // Adds the variants with `nt` that take x so, each with the most lanes it
  // has room for; those with two stages with the next fewer as well.
  const auto add = [&](int nt, XSource source) {
    for (const SmallVariant& variant : kSmallVariants) {
      if (variant.nt != nt || variant.source != source) continue;
      int left = variant.stages == 2 ? 2 : 1;
      for (const int each : lanes) {
        const SmallConfig config{variant, each};
        if (left == 0 || !PlanSmall(w, m, epilogue, config, device)) continue;
        configs.push_back(config);
        --left;
      }
    }
  };
  int fitting = 1;
  while (fitting < kMaxNt && fitting * 8 < m) fitting *= 2;
  // x from shared memory beats x from L2 (1.4 to 3 times at nt = 1, more above)
  // even if that takes more passes.
  for (int nt = fitting; nt >= 1 && configs.empty(); nt /= 2) {
    add(nt, XSource::kRegisters);
    add(nt, XSource::kShared);
  }
  for (int nt = fitting; nt >= 1 && configs.empty(); nt /= 2) {
    add(nt, XSource::kGlobal);
  }
  if (configs.empty()) add(1, XSource::kNowhere);
  return configs;
}

}  // namespace nibble::kernels::cuda
