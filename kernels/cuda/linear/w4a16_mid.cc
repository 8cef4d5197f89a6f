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
constexpr std::string_view kFused = "fused";
constexpr int kBarrierBytes = 8;
constexpr int64_t kAlignment = 128;  // bytes, of what lies in shared memory
constexpr int kSmallestGroup = 32;   // of formats that need sums of x
constexpr int kWidestColumns = 128;
constexpr int kNarrowestColumns = 32;

// More stages of x than that bring nothing: that is 128 KB in flight.
constexpr int kMaxXStages = 8;
constexpr int kMinXStages = 3;
// Column tiles that neighbouring CTAs share, so that x and W stay in L2.
constexpr int kMaxRaster = 8;
constexpr size_t kMaxGuesses = 6;

// Of the grid that prepares x.
constexpr int64_t kMaxK = int64_t{1} << 24;
// What the kernel counts in 32 bits.
constexpr int64_t kMaxRows = (int64_t{1} << 31) - 256;  // of x and of W

int Log2(int power) { return std::countr_zero(static_cast<unsigned>(power)); }

// Where k is split tiles are at most so wide: scratch has room for no more.
int64_t WidestSplit(int64_t m) {
  return std::min<int64_t>(2 * RoundUp(m, int64_t{kNarrowestColumns}),
                           kWidestColumns);
}

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
  const int slices = Slices(w.k);
  if (config.parts < 1 || kSliceSharers % config.parts != 0) return false;
  if (config.parts > 1 &&
      (CeilDiv(slices, QuarterSlices(slices)) != kSliceSharers ||
       config.variant.columns > WidestSplit(m))) {
    return false;
  }
  return !config.variant.fused ||
         (w.layout.group == 128 && SliceBlocks(w.k) == 1);
}

// Fills the offsets of `params` for its number of stages of x; the bytes in
// all.
int64_t LayOut(const W4Layout& layout, const MidVariant& variant,
               MidParams& params) {
  const int columns = variant.columns;
  int64_t end = int64_t{params.x_stages} * StageBytes(columns);
  const auto take = [&](int64_t bytes) {
    const int64_t at = end;
    end = RoundUp(at + bytes, kAlignment);
    return static_cast<int>(at);
  };
  const bool sums = layout.code == W4Code::kInt4;
  params.sums_at =
      take(sums ? int64_t{SumSlots(columns, params.x_stages)} *
                      layout.GroupsPerBlock() * SumsPitch(columns) * 4
                : 0);
  params.stash_at = take(int64_t{kMidWarpgroups} * columns * kTotalPitch * 4);
  params.ring_at =
      take(int64_t{kMidWarpgroups} * 4 * variant.depth * layout.BlockBytes());
  params.barriers_at =
      take((2 * params.x_stages + 2 * kMidWarpgroups * variant.depth) *
           kBarrierBytes);
  return end;
}

// What a launch may take, in clocks: good enough to leave out what cannot be
// best. Figures are of an H200.
double GuessClocks(const MidConfig& config, const MidLaunch& launch) {
  constexpr double kTile = 2'000, kAddParts = 4'000;
  constexpr double kBlock = 1'100, kColumn = 17;
  constexpr double kNotFused = 1.05;
  const MidParams& params = launch.params;
  const double items = static_cast<double>(CeilDiv(params.work, launch.ctas));
  const double blocks = std::min(params.part_blocks, params.blocks_k);
  const double block = (kBlock + kColumn * config.variant.columns) *
                       (config.variant.fused ? 1.0 : kNotFused);
  return items * (kTile + blocks * block) + (config.parts == 1 ? 0 : kAddParts);
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
  return {.path = LinearPath::kWide,
          .kernel = std::string(kKernel),
          .tile_m = variant.columns,
          .tile_n = kMidRows,
          .split_k = config.parts,
          .stages = variant.depth,
          .variant = variant.fused ? std::string(kFused) : std::string()};
}

std::optional<MidConfig> ParseMidSpec(const LaunchSpec& spec) {
  if (spec.kernel != kKernel) return std::nullopt;
  for (const MidVariant& variant : kMidVariants) {
    const MidConfig config{variant, spec.split_k};
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
  params.quarter_blocks = QuarterSlices(Slices(w.k)) * params.slice_blocks;
  params.parts_log2 = Log2(config.parts);
  params.part_blocks = kSliceSharers / config.parts * params.quarter_blocks;
  const int64_t row_tiles = CeilDiv(w.n, kMidRows);
  const int64_t column_tiles = CeilDiv(m, int64_t{variant.columns});
  const int64_t items = row_tiles * column_tiles;
  if (config.parts > 1 && items > kMaxSplitItems) return std::nullopt;
  if (items * config.parts > kMaxRows) return std::nullopt;
  params.work = static_cast<int>(items * config.parts);
  params.raster = LargestDivisor(column_tiles, kMaxRaster);
  params.raster_items = static_cast<int>(params.raster * row_tiles);
  params.by_raster = DivideBy(params.raster);
  params.by_raster_items = DivideBy(params.raster_items);

  int64_t bytes = 0;
  for (params.x_stages = kMaxXStages;; --params.x_stages) {
    if (params.x_stages < kMinXStages) return std::nullopt;
    bytes = LayOut(w.layout, variant, params);
    if (bytes <= device.shared_memory_bytes) break;
  }
  launch.ctas = std::min(params.work, device.multiprocessors);
  launch.threads = kMidThreads;
  launch.shared_bytes = static_cast<int>(bytes);
  return launch;
}

std::vector<MidConfig> MidConfigs(const W4Weights& w, int64_t m,
                                  W4Epilogue epilogue,
                                  const DeviceInfo& device) {
  std::vector<std::pair<double, MidConfig>> guesses;
  for (const MidVariant& variant : kMidVariants) {
    // Narrower tiles than half of x decode every weight too often.
    if (2 * variant.columns < m && variant.columns < kWidestColumns) continue;
    for (const int parts : {1, 2, kSliceSharers}) {
      const MidConfig config{variant, parts};
      const auto launch = PlanMid(w, m, epilogue, config, device);
      if (launch) guesses.emplace_back(GuessClocks(config, *launch), config);
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
  scratch.arrived_at = RoundUp(
      scratch.sums_at + CeilDiv(m, kWidestColumns) * tile_floats * 2 * 4,
      kAlignment);
  scratch.partials_at = RoundUp(
      scratch.arrived_at + kMaxSplitItems * kMidWarpgroups * 4, kAlignment);
  scratch.total_bytes = scratch.partials_at + int64_t{kMaxSplitItems} *
                                                  kSliceSharers * kMidRows *
                                                  WidestSplit(m) * 4;
  return scratch;
}

}  // namespace nibble::kernels::cuda
