#include "kernels/cuda/linear/w4a16_small.h"

#include <algorithm>
#include <bit>
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
  int64_t zero_at, sums_at, done_at, ring_at, ring_end;
};

SharedLayout LayOut(const W4Layout& layout, const SmallParams& params,
                    const SmallConfig& config, int64_t warps) {
  const XSource source = config.variant.source;
  SharedLayout at{};
  if (KeepsX(source)) {
    at.zero_at = int64_t{params.rows} * StagedRowBytes(params.cta_blocks);
    at.sums_at = at.zero_at + kZeroBytes;
  }
  at.done_at = at.sums_at;
  if (layout.code == W4Code::kInt4 && source != XSource::kNowhere) {
    at.done_at += int64_t{params.cta_blocks} * layout.GroupsPerBlock() *
                  (config.variant.nt * 8) * static_cast<int64_t>(sizeof(float));
  }
  at.ring_at = RoundUp(at.done_at + kBarrierBytes, kRingAlignment);
  at.ring_end =
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

// The tiles of the team that owns the most.
int64_t OwnTiles(const SmallParams& params) {
  return int64_t{params.runs_each + (params.runs_extra > 0 ? 1 : 0)}
         << params.run_log2;
}

// How tiles are shared out among teams, and how far a warp hops.
void ShareOut(int64_t tiles, int64_t teams, int lanes, SmallParams& params) {
  const int64_t runs = tiles >> params.run_log2;
  params.runs_each = static_cast<int>(runs / teams);
  params.runs_extra = static_cast<int>(runs % teams);
  // The i-th tile of team 0.
  const auto tile_of = [&](int64_t i) {
    return ((i >> params.run_log2) * teams << params.run_log2) +
           (i & ((1 << params.run_log2) - 1));
  };
  for (int i = 0; i < 2; ++i) {
    params.hop_bytes[i] = (tile_of(i + lanes) - tile_of(i)) * params.tile_bytes;
  }
}

// How lanes share the rows of x that a slice stages. x's own pitch is not
// known yet.
void ShareX(int lanes, SmallParams& params) {
  const int lane_rows = static_cast<int>(CeilDiv(params.rows, lanes));
  params.lane_rows = static_cast<uint8_t>(lane_rows);
  params.full_lanes =
      static_cast<uint8_t>(params.rows - (lane_rows - 1) * lanes);
  params.x_along_k = params.slice_blocks > params.lane_rows;
  const int row_to = lanes * StagedRowBytes(params.cta_blocks);
  constexpr int kBlockTo = kBlockK * 2;
  params.x_inner_to = params.x_along_k ? kBlockTo : row_to;
  params.x_outer_to = params.x_along_k ? row_to : kBlockTo;
}

// The slices of a CTA that has most of them.
int SlicesOfCta(int64_t k, int cluster) {
  return static_cast<int>(CeilDiv(Slices(k), cluster));
}

// Where partial sums lie and how many tiles they are of: behind the rings, or,
// where that is not enough for one epoch and x is held in registers, from the
// beginning, which moves what is behind x back.
void PlacePartials(int64_t ring_end, int step, const SmallConfig& config,
                   const DeviceInfo& device, SmallLaunch& launch) {
  SmallParams& params = launch.params;
  const int64_t own_tiles = OwnTiles(params);
  // Whole runs in each CTA of the team.
  const auto bytes_of = [&](int64_t epoch) {
    return (CeilDiv(epoch >> params.run_log2, config.cluster)
            << params.run_log2) *
           params.partial_tile_bytes;
  };
  const int64_t room =
      std::max<int64_t>(device.shared_memory_bytes - ring_end, 0);
  const int64_t room_tiles =
      (room / params.partial_tile_bytes >> params.run_log2)
      << (params.run_log2 + params.cluster_log2);
  params.epoch = static_cast<int>(EpochTiles(own_tiles, room_tiles, step));
  params.partial_at = static_cast<int>(ring_end);
  launch.shared_bytes = static_cast<int>(ring_end + bytes_of(params.epoch));
  if (params.epoch >= own_tiles ||
      config.variant.source != XSource::kRegisters) {
    return;
  }
  const int64_t all_tiles = RoundUp<int64_t>(own_tiles, step);
  const int64_t shift = RoundUp<int64_t>(
      std::max<int64_t>(bytes_of(all_tiles) - params.sums_at, 0),
      kRingAlignment);
  if (ring_end + shift > device.shared_memory_bytes) return;
  params.epoch = static_cast<int>(all_tiles);
  params.partial_on_x = true;
  params.partial_at = 0;
  params.sums_at += static_cast<int>(shift);
  params.done_at += static_cast<int>(shift);
  params.ring_at += static_cast<int>(shift);
  launch.shared_bytes = static_cast<int>(ring_end + shift);
}

bool InRange(const W4Weights& w, int64_t m, W4Epilogue epilogue,
             const SmallConfig& config, const DeviceInfo& device) {
  if (m < 1 || w.n < 1 || w.n > kMaxN || w.k < 1 || w.k > kMaxK) return false;
  if (epilogue == W4Epilogue::kSiluMul && w.n % (2 * kTileRows) != 0) {
    return false;
  }
  if (std::find(kSmallVariants.begin(), kSmallVariants.end(), config.variant) ==
      kSmallVariants.end()) {
    return false;
  }
  const int cluster = config.cluster;
  if (std::find(kClusters.begin(), kClusters.end(), cluster) ==
      kClusters.end()) {
    return false;
  }
  if ((cluster > 1) != config.variant.cluster) return false;
  if (cluster > 1 && (device.compute_major != 9 || cluster > Slices(w.k))) {
    return false;
  }
  if (config.lanes < 1 ||
      config.lanes > kMaxWarps / SlicesOfCta(w.k, cluster)) {
    return false;
  }
  return config.variant.source != XSource::kRegisters || SliceBlocks(w.k) == 1;
}

int64_t Teams(const W4Weights& w, int run_log2, int cluster,
              const DeviceInfo& device) {
  return std::min<int64_t>(device.multiprocessors / cluster,
                           Tiles(w.n) >> run_log2);
}

// The most lanes that have work.
int MostLanes(const W4Weights& w, W4Epilogue epilogue, int cluster,
              const DeviceInfo& device) {
  const int run_log2 = epilogue == W4Epilogue::kSiluMul ? 1 : 0;
  const int64_t teams =
      std::max<int64_t>(Teams(w, run_log2, cluster, device), 1);
  const int64_t tiles = std::max<int64_t>(CeilDiv(Tiles(w.n), teams), 1);
  return static_cast<int>(
      std::clamp<int64_t>(kMaxWarps / SlicesOfCta(w.k, cluster), 1, tiles));
}

}  // namespace

LaunchSpec SmallSpec(const SmallConfig& config) {
  const auto source = static_cast<size_t>(config.variant.source);
  return {.kernel = std::string(kKernel),
          .tile_m = config.variant.nt * 8,
          .tile_n = config.lanes,
          .split_k = config.cluster,
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
      .source = static_cast<XSource>(name - kSourceNames.begin()),
      .cluster = spec.split_k > 1};
  if (std::find(kSmallVariants.begin(), kSmallVariants.end(), variant) ==
      kSmallVariants.end()) {
    return std::nullopt;
  }
  return SmallConfig{variant, spec.tile_n, spec.split_k};
}

std::optional<SmallLaunch> PlanSmall(const W4Weights& w, int64_t m,
                                     W4Epilogue epilogue,
                                     const SmallConfig& config,
                                     const DeviceInfo& device, int teams) {
  if (!InRange(w, m, epilogue, config, device)) return std::nullopt;
  SmallLaunch launch;
  launch.slices = SlicesOfCta(w.k, config.cluster);
  launch.lanes = config.lanes;
  SmallParams& params = launch.params;
  params = {};
  params.k = static_cast<int>(w.k);
  params.cta_slices = static_cast<uint8_t>(launch.slices);
  params.lanes = static_cast<uint8_t>(launch.lanes);
  params.cluster_log2 = static_cast<uint8_t>(
      std::countr_zero(static_cast<uint32_t>(config.cluster)));
  params.run_log2 = epilogue == W4Epilogue::kSiluMul ? 1 : 0;
  params.blocks_k = static_cast<int>(BlocksPerTile(w.k));
  params.slices = static_cast<uint8_t>(Slices(w.k));
  params.slice_blocks = SliceBlocks(w.k);
  params.cta_blocks =
      std::min(launch.slices * params.slice_blocks, params.blocks_k);
  params.rows = static_cast<int>(std::min<int64_t>(m, config.variant.nt * 8));
  params.rows_log2 = static_cast<uint8_t>(
      std::bit_width(static_cast<uint32_t>(params.rows - 1)));
  ShareX(config.lanes, params);
  const auto block_bytes = static_cast<uint32_t>(w.layout.BlockBytes());
  params.tile_bytes = params.blocks_k * block_bytes;
  params.slice_bytes = params.slice_blocks * block_bytes;
  const int64_t own_teams = std::min<int64_t>(
      Teams(w, params.run_log2, config.cluster, device), teams);
  if (own_teams < 1) return std::nullopt;
  launch.ctas = static_cast<int>(own_teams * config.cluster);
  params.ctas = launch.ctas;
  ShareOut(Tiles(w.n), own_teams, config.lanes, params);

  const SharedLayout at =
      LayOut(w.layout, params, config, int64_t{launch.slices} * config.lanes);
  params.zero_at = static_cast<int>(at.zero_at);
  params.sums_at = static_cast<int>(at.sums_at);
  params.done_at = static_cast<int>(at.done_at);
  params.ring_at = static_cast<int>(at.ring_at);
  params.partial_tile_bytes =
      params.slices * kTileRows * static_cast<int>(sizeof(float))
      << params.rows_log2;
  const int step =
      config.lanes % 2 == 0 ? config.lanes : config.lanes << params.run_log2;
  PlacePartials(at.ring_end, step, config, device, launch);
  if (params.epoch == 0) return std::nullopt;
  return launch;
}

bool AsksEarly(const SmallLaunch& launch, const W4Layout& layout,
               const SmallConfig& config) {
  // Measured on an H200: weights asked for early delay x, which the others of
  // this SM wait for. One stage pays where a CTA reads several times as many
  // bytes of weights as of x; two never do.
  constexpr int64_t kWeightsPerX = 4;
  if (!KeepsX(config.variant.source)) return true;
  const SmallParams& params = launch.params;
  const int64_t x_bytes =
      int64_t{params.rows} * params.cta_blocks * (kBlockK * 2);
  const int64_t weight_bytes =
      OwnTiles(params) * params.cta_blocks * layout.BlockBytes();
  return weight_bytes >= kWeightsPerX * x_bytes;
}

std::vector<SmallConfig> SmallConfigs(const W4Weights& w, int64_t m,
                                      W4Epilogue epilogue,
                                      const DeviceInfo& device, bool clusters) {
  constexpr int kMaxNt = 4;
  std::vector<SmallConfig> configs;
  if (m < 1 || w.n < 1 || w.k < 1) return configs;
  const auto add = [&](const SmallConfig& config) {
    const bool fits = PlanSmall(w, m, epilogue, config, device).has_value();
    if (fits) configs.push_back(config);
    return fits;
  };
  // The variants with `nt` that take x so, with as many lanes as there is room
  // for; those with two stages with the next fewer as well.
  const auto add_single = [&](int nt, XSource source) {
    const int most = MostLanes(w, epilogue, 1, device);
    for (const SmallVariant& variant : kSmallVariants) {
      if (variant.nt != nt || variant.source != source || variant.cluster) {
        continue;
      }
      int left = variant.stages == 2 ? 2 : 1;
      for (int lanes = most; lanes > 0 && left > 0; lanes /= 2) {
        if (add({variant, lanes})) --left;
      }
    }
  };
  // x from registers, or else from shared memory, in clusters of all sizes.
  const auto add_clusters = [&](int nt) {
    for (const int cluster : kClusters) {
      if (cluster == 1 || !clusters) continue;
      const int lanes = MostLanes(w, epilogue, cluster, device);
      if (!add({{nt, 2, XSource::kRegisters, true}, lanes, cluster})) {
        add({{nt, 2, XSource::kShared, true}, lanes, cluster});
      }
    }
  };
  int fitting = 1;
  while (fitting < kMaxNt && fitting * 8 < m) fitting *= 2;
  // Measured on an H200: up to this many bytes of x in every CTA, clusters win
  // nothing; above, they do from two CTAs on.
  constexpr int64_t kFewXBytes = 64 << 10;
  const bool much_x =
      std::min<int64_t>(m, fitting * 8) * BlocksPerTile(w.k) * (kBlockK * 2) >
      kFewXBytes;
  // x from shared memory beats x from L2 (1.4 to 3 times at nt = 1, more above)
  // even if that takes more passes.
  for (int nt = fitting; nt >= 1 && configs.empty(); nt /= 2) {
    if (nt <= 2 && much_x) add_clusters(nt);
    add_single(nt, XSource::kRegisters);
    add_single(nt, XSource::kShared);
    if (nt <= 2 && !much_x) add_clusters(nt);
  }
  for (int nt = fitting; nt >= 1 && configs.empty(); nt /= 2) {
    add_single(nt, XSource::kGlobal);
  }
  if (configs.empty()) add({{1, 1, XSource::kNowhere}, 1});
  return configs;
}

}  // namespace nibble::kernels::cuda
