#include "kernels/cuda/linear/w4a16_mid.h"

#include <algorithm>
#include <bit>
#include <string>
#include <string_view>
#include <utility>

#include "base/checked_math.h"

namespace nibble::kernels::cuda {
namespace {

constexpr std::string_view kKernel = "w4a16_mid";
constexpr int kBarrierBytes = 8;
constexpr int64_t kAlignment = 128;  // bytes, of what lies in shared memory
constexpr int kSmallestGroup = 32;   // of formats that need sums of x
constexpr int kWidestColumns = 128;

// More stages of x than that bring nothing: that is 64 KB and more in flight.
constexpr int kMaxXStages = 4;
constexpr int kMinXStages = 2;
// Column tiles that neighbouring CTAs share, so that x and W stay in L2.
constexpr int kMaxRaster = 8;

// Up to so many rows two tiles may be better than one twice as wide, where
// there are few rows of W.
constexpr int64_t kMostRowsInHalves = 512;
constexpr size_t kMaxGuesses = 8;

constexpr std::array<std::string_view, 3> kTotalNames = {"", "_held", "_fused"};

// What the kernel counts in 32 bits.
constexpr int64_t kMaxK = int64_t{1} << 28;
constexpr int64_t kMaxRows = (int64_t{1} << 31) - 256;  // of x and of W

int KParts(const MidConfig& config) {
  return config.variant.warpgroups / config.row_tiles;
}

bool IsPowerOf2(int n) { return n > 0 && (n & (n - 1)) == 0; }

int Log2(int power) { return std::countr_zero(static_cast<unsigned>(power)); }

// The largest divisor of n up to `limit`.
int LargestDivisor(int64_t n, int limit) {
  int divisor = limit;
  while (n % divisor != 0) --divisor;
  return divisor;
}

bool InRange(const W4Weights& w, int64_t m, W4Epilogue epilogue,
             const MidConfig& config, const DeviceInfo& device) {
  if (device.compute_major != 9) return false;
  if (m < 1 || m > kMaxRows || w.n < 1 || w.n > kMaxRows) return false;
  if (w.k < 1 || w.k > kMaxK) return false;
  if (epilogue == W4Epilogue::kSiluMul && w.n % (2 * kTileRows) != 0) {
    return false;
  }
  const MidVariant& variant = config.variant;
  const int chunks = StageK(variant.columns) / kChunkK;
  if (!IsPowerOf2(config.row_tiles) || config.row_tiles > variant.warpgroups) {
    return false;
  }
  if (!IsPowerOf2(config.multicast) || config.multicast > chunks) return false;
  if (config.k_ctas < 1 || config.k_ctas > 2 || Slices(w.k) < config.k_ctas) {
    return false;
  }
  const bool split = config.k_ctas > 1 || config.row_tiles < variant.warpgroups;
  if (variant.total != MidTotal::kShared && split) return false;
  return variant.total != MidTotal::kFused ||
         (w.layout.group == 128 && SliceBlocks(w.k) == 1);
}

// Fills the offsets of `params` for its number of stages of x; the bytes in
// all.
int64_t LayOut(const W4Layout& layout, const MidConfig& config,
               MidParams& params) {
  const MidVariant& variant = config.variant;
  const int columns = variant.columns;
  const int block_stages = kBlockK / StageK(columns);
  const int stages = KParts(config) * params.x_stages;
  int64_t end = int64_t{stages} * StageBytes(columns);
  const auto take = [&](int64_t bytes) {
    const int64_t at = end;
    end = RoundUp(at + bytes, kAlignment);
    return static_cast<int>(at);
  };
  const bool sums = layout.code == W4Code::kInt4;
  params.sums_at =
      take(sums ? int64_t{stages} * block_stages * StageK(columns) /
                      layout.group * SumsPitch(columns) * 4
                : 0);
  params.total_at = take(int64_t{config.row_tiles} * columns * kTotalPitch * 4);
  const int givens =
      (config.k_ctas - 1) * params.given_slots * config.row_tiles;
  params.given_at =
      take(int64_t{givens} * columns / 8 * kWarpgroupThreads * 16);
  params.ring_at =
      take(int64_t{variant.warpgroups} * 4 *
           (variant.depth * layout.BlockBytes() + layout.BlockScaleBytes()));
  params.barriers_at =
      take((3 * stages + 4 * variant.warpgroups + 8 * givens) * kBarrierBytes);
  return end;
}

// What a launch may take, in clocks: good enough to leave out what cannot be
// best. Figures are of an H200.
double GuessClocks(const W4Weights& w, const MidConfig& config,
                   const MidLaunch& launch) {
  constexpr double kStart = 4'000, kPrepareAhead = 3'000, kItem = 1'000;
  constexpr double kBlockInstructions = 250, kColumnInstructions = 2.7;
  constexpr double kIssueShare = 0.7, kTensorShare = 0.85;
  constexpr double kLeastProductClocks = 16;
  constexpr double kCacheBytes = 36, kMemoryBytes = 2'300;  // a clock
  // Of totals in shared memory, of clusters.
  constexpr double kSharedCost = 1.05, kClusterCost = 1.02;
  const MidVariant& variant = config.variant;
  const MidParams& params = launch.params;
  const int clusters = launch.ctas / launch.cluster_ctas;
  const auto items = static_cast<double>(CeilDiv(params.work, clusters));
  const int64_t slices =
      CeilDiv(CeilDiv(params.slices, config.k_ctas), KParts(config));
  const auto blocks = static_cast<double>(slices * params.slice_blocks);
  const double issue =
      variant.warpgroups *
      (kBlockInstructions + kColumnInstructions * variant.columns) /
      kIssueShare;
  const double tensor = variant.warpgroups * (kBlockK / kStepK) *
                        std::max(kLeastProductClocks, variant.columns / 2.0) /
                        kTensorShare;
  const double compute = items * (blocks * std::max(issue, tensor) + kItem);
  // What a CTA reads by way of L2, and what all of them read from memory.
  const double item_k = static_cast<double>(w.k) / config.k_ctas;
  const double cache = items * item_k *
                       (2.0 * variant.columns / config.multicast +
                        0.55 * config.row_tiles * kWarpgroupRows) /
                       kCacheBytes;
  const double memory =
      static_cast<double>(PackedBytes(w.layout, w.n, w.k)) / kMemoryBytes;
  return kStart + (variant.prepared ? kPrepareAhead : 0) +
         std::max({compute, cache, memory}) *
             (variant.total == MidTotal::kShared ? kSharedCost : 1.0) *
             (launch.cluster_ctas > 1 ? kClusterCost : 1.0);
}

}  // namespace

FastDivide DivideBy(int64_t d) {
  // Granlund and Montgomery, "Division by Invariant Integers using
  // Multiplication": ceil(2^(31 + l) / d) with 2^l >= d is exact below 2^31.
  const int l = std::bit_width(static_cast<uint64_t>(d) - 1);
  const uint64_t power = uint64_t{1} << (31 + l);
  return {static_cast<uint32_t>((power + d - 1) / d), 31 + l};
}

LaunchSpec MidSpec(const MidConfig& config) {
  const MidVariant& variant = config.variant;
  const auto total = static_cast<size_t>(variant.total);
  return {.path = LinearPath::kWide,
          .kernel = std::string(kKernel),
          .tile_m = variant.columns,
          .tile_n = config.row_tiles * kWarpgroupRows,
          .split_k = config.k_ctas,
          .stages = config.multicast,
          .variant = std::string(variant.prepared ? "prepared" : "direct") +
                     std::string(kTotalNames.at(total))};
}

std::optional<MidConfig> ParseMidSpec(const LaunchSpec& spec) {
  if (spec.kernel != kKernel || spec.tile_n % kWarpgroupRows != 0) {
    return std::nullopt;
  }
  for (const MidVariant& variant : kMidVariants) {
    const MidConfig config{variant, spec.tile_n / kWarpgroupRows, spec.stages,
                           spec.split_k};
    if (MidSpec(config) == spec) return config;
  }
  return std::nullopt;
}

std::optional<MidLaunch> PlanMid(const W4Weights& w, int64_t m,
                                 W4Epilogue epilogue, const MidConfig& config,
                                 const DeviceInfo& device) {
  if (!InRange(w, m, epilogue, config, device)) return std::nullopt;
  const MidVariant& variant = config.variant;
  MidLaunch launch;
  MidParams& params = launch.params;
  params = {};
  params.m = static_cast<int>(m);
  params.tiles = static_cast<int>(Tiles(w.n));
  params.blocks_k = static_cast<int>(BlocksPerTile(w.k));
  params.slice_blocks = SliceBlocks(w.k);
  params.slices = Slices(w.k);
  params.row_tiles_log2 = Log2(config.row_tiles);
  params.k_parts_log2 = Log2(KParts(config));
  params.multicast_log2 = Log2(config.multicast);
  params.k_ctas_log2 = Log2(config.k_ctas);
  // A multiple of the parts: then one warpgroup fills a slot each time, and
  // cannot take one round for another.
  params.given_slots = config.k_ctas > 1 ? KParts(config) * 2 : 0;
  const int cluster_rows =
      config.row_tiles * config.multicast * kWarpgroupRows / kTileRows;
  const int64_t row_clusters = CeilDiv(params.tiles, cluster_rows);
  const int64_t column_tiles = CeilDiv(m, int64_t{variant.columns});
  const int64_t work = row_clusters * column_tiles;
  if (work > kMaxRows) return std::nullopt;
  params.work = static_cast<int>(work);
  params.raster = LargestDivisor(column_tiles, kMaxRaster);
  params.raster_work = static_cast<int>(params.raster * row_clusters);
  params.by_raster = DivideBy(params.raster);
  params.by_raster_work = DivideBy(params.raster_work);

  int64_t bytes = 0;
  for (params.x_stages = kMaxXStages;; --params.x_stages) {
    if (params.x_stages < kMinXStages) {
      if (params.given_slots <= KParts(config)) return std::nullopt;
      params.given_slots = KParts(config);
      params.x_stages = kMaxXStages;
    }
    bytes = LayOut(w.layout, config, params);
    if (bytes <= device.shared_memory_bytes) break;
  }
  launch.cluster_ctas = config.multicast * config.k_ctas;
  const int clusters = device.multiprocessors / launch.cluster_ctas;
  if (clusters < 1) return std::nullopt;
  launch.ctas =
      static_cast<int>(std::min<int64_t>(work, clusters)) * launch.cluster_ctas;
  launch.threads = (variant.warpgroups + 1) * kWarpgroupThreads;
  launch.shared_bytes = static_cast<int>(bytes);
  return launch;
}

std::vector<MidConfig> MidConfigs(const W4Weights& w, int64_t m,
                                  W4Epilogue epilogue,
                                  const DeviceInfo& device) {
  std::vector<std::pair<double, MidConfig>> guesses;
  const auto add = [&](const MidConfig& config) {
    const auto launch = PlanMid(w, m, epilogue, config, device);
    if (launch) guesses.emplace_back(GuessClocks(w, config, *launch), config);
  };
  for (const MidVariant& variant : kMidVariants) {
    // Narrower tiles than half of x decode every weight too often.
    if (variant.columns < kWidestColumns && 2 * variant.columns < m &&
        (variant.columns < kWidestColumns / 2 || m > kMostRowsInHalves)) {
      continue;
    }
    for (int row_tiles = 1; row_tiles <= variant.warpgroups; row_tiles *= 2) {
      for (int k_ctas = 1; k_ctas <= 2; ++k_ctas) {
        for (int multicast = 1; multicast <= 2; ++multicast) {
          add({variant, row_tiles, multicast, k_ctas});
        }
      }
    }
  }
  std::stable_sort(
      guesses.begin(), guesses.end(),
      [](const auto& a, const auto& b) { return a.first < b.first; });
  if (guesses.size() > kMaxGuesses) guesses.resize(kMaxGuesses);
  std::vector<MidConfig> configs;
  configs.reserve(guesses.size());
  for (const auto& [clocks, config] : guesses) configs.push_back(config);
  return configs;
}

MidScratch LayOutMidScratch(int64_t m, int64_t k) {
  MidScratch scratch{};
  scratch.x_pitch = RoundUp(k, int64_t{8});
  scratch.sums_at = RoundUp(m * scratch.x_pitch * 2, kAlignment);
  const int64_t groups = BlocksPerTile(k) * (kBlockK / kSmallestGroup);
  const int64_t tile_floats = groups * SumsPitch(kWidestColumns);
  // Narrower tiles have more padding: twice is enough for all.
  scratch.total_bytes =
      scratch.sums_at + CeilDiv(m, kWidestColumns) * tile_floats * 2 * 4;
  return scratch;
}

}  // namespace nibble::kernels::cuda
