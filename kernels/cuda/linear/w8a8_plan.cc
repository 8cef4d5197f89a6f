#include "kernels/cuda/linear/w8a8_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checked_math.h"

namespace nibble::kernels::cuda {
namespace {

constexpr std::string_view kKernelPrefix = "w8a8_";
constexpr char kSiluMulSuffix[] = "_silu_mul";
constexpr int kClusters[] = {1, 2, 4};
// CTAs walk over so many bytes of x, rows of it, before they go to the next
// columns: what they share stays in L2 meanwhile.
constexpr int64_t kRasterBytes = 16 << 20;
constexpr size_t kMaxGuesses = 12;

// What the kernel counts in 32 bits.
constexpr int64_t kMaxRows = (int64_t{1} << 31) - 1024;  // of x and of W
constexpr int64_t kMaxK = int64_t{1} << 30;
constexpr int64_t kMaxItems = std::numeric_limits<int>::max();

// A swizzled operand is made of eights of rows.
constexpr int kEight = 8;
constexpr int kWarpThreads = 32;

std::string_view ScheduleName(W8Schedule schedule) {
  switch (schedule) {
    case W8Schedule::kRows:
      return "rows";
    case W8Schedule::kColumns:
      return "columns";
    case W8Schedule::kSingle:
      return "single";
    case W8Schedule::kPingPong:
      return "pingpong";
    case W8Schedule::kMma:
      return "mma";
  }
  return "";
}

// Compute capabilities times ten.
constexpr int kHopper = 90;
constexpr int kLeastInt8 = 80;
constexpr int kLeastFp8 = 89;

int Capability(const DeviceInfo& device) {
  return 10 * device.compute_major + device.compute_minor;
}

// The least capability whose mma.sync multiplies the codes of a kind.
int LeastCapability(W8Kind kind) {
  return IsInt8(kind) ? kLeastInt8 : kLeastFp8;
}

bool RunsOn(W8Kind kind, const W8Tile& tile, const DeviceInfo& device) {
  return tile.schedule == W8Schedule::kMma
             ? Capability(device) >= LeastCapability(kind)
             : Capability(device) == kHopper;
}

bool IsCompiled(const W8Tile& tile) {
  return tile.schedule == W8Schedule::kMma ? W8MmaIsCompiled()
                                           : W8WgmmaIsCompiled();
}

bool InRange(const W8Problem& problem, const W8Config& config,
             const DeviceInfo& device) {
  if (!RunsOn(problem.kind, config.tile, device)) return false;
  if (device.shared_memory_bytes < LayOutW8(problem.kind, config.tile).bytes) {
    return false;
  }
  if (problem.m < 1 || problem.m > kMaxRows) return false;
  if (problem.n < 1 || problem.n > kMaxRows) return false;
  if (problem.k < 1 || problem.k > kMaxK) return false;
  if (problem.kind == W8Kind::kInt8 && problem.k > kW8MaxInt8K) return false;
  const int shared =
      config.tile.SharesW() ? config.tile.columns : config.tile.rows;
  return config.cluster >= 1 && config.cluster <= config.tile.MaxCluster() &&
         shared % (config.cluster * kEight) == 0;
}

// What a launch of a kMma tile may take, in clocks of a multiprocessor whose
// tensor cores and L2 are those of compute capability 8.0.
double GuessMmaClocks(const W8Problem& problem, const W8Launch& launch,
                      const W8Tile& tile, const DeviceInfo& device) {
  constexpr double kProducts = 2'048;  // a clock
  constexpr double kL2Bytes = 40;      // a clock
  constexpr double kLatency = 250;     // of a step of one CTA
  constexpr double kTile = 2'000;      // before and after the steps
  const auto resident = static_cast<double>(
      std::max<int64_t>(1, device.shared_memory_bytes / launch.shared_bytes));
  const double items = launch.ctas;
  const double at_once =
      std::min(resident, std::ceil(items / device.multiprocessors));
  const double tensor =
      static_cast<double>(tile.rows * tile.columns * kW8BlockK) / kProducts;
  const double l2 = (std::min<double>(tile.rows, problem.m) + tile.columns) *
                    kW8BlockK / kL2Bytes;
  const double step = std::max(kLatency, at_once * std::max(tensor, l2));
  const double rounds = std::ceil(items / (device.multiprocessors * at_once));
  return rounds * (launch.params.k_blocks * step + kTile);
}

// What a launch may take, in clocks: good enough to leave out what cannot be
// best. Figures are of an H200.
double GuessClocks(const W8Problem& problem, const W8Config& config,
                   const W8Launch& launch, const DeviceInfo& device) {
  constexpr double kMemoryBytes = 2'700;  // a clock, of all
  constexpr double kL2Bytes = 50;         // a clock, of an SM
  constexpr double kLatency = 130;        // of a step that nothing else hides
  constexpr double kTile = 1'000, kStore = 1'500;
  const W8Tile& tile = config.tile;
  if (tile.schedule == W8Schedule::kMma) {
    return GuessMmaClocks(problem, launch, tile, device);
  }
  const bool promoted = IsPromoted(problem.kind);
  // Four wgmma of 64 rows; narrow ones wait for shared memory.
  const double columns = tile.PartColumns();
  const double wgmma = 4 * std::max(columns / 2, 16 + columns / 4);
  const double tensor = wgmma * tile.rows * tile.columns /
                        (64.0 * tile.PartColumns()) * (promoted ? 1.06 : 1.0);
  const double x_rows = static_cast<double>(launch.params.x_box);
  const double w_rows = launch.params.w_box;
  const double l2 = (x_rows + w_rows) * kW8BlockK / kL2Bytes;
  const double step = std::max({tensor, l2, kLatency});
  const double clusters = launch.ctas / config.cluster;
  const double items =
      static_cast<double>(launch.params.row_items) * launch.params.column_items;
  const double rounds = std::max(1.0, std::ceil(items / clusters));
  const double store = tile.schedule == W8Schedule::kPingPong ? 0 : kStore;
  const double clocks =
      rounds * (launch.params.k_blocks * step + store) + kTile;
  const double bytes = static_cast<double>(problem.n + problem.m) *
                       static_cast<double>(problem.k);
  return std::max(clocks, bytes / kMemoryBytes + kTile);
}

}  // namespace

std::span<const W8Tile> W8Tiles(W8Kind kind) {
  switch (kind) {
    case W8Kind::kInt8:
    case W8Kind::kE4m3Fast:
      return kW8PlainTiles;
    case W8Kind::kE4m3:
      return kW8PromotedTiles;
    case W8Kind::kE4m3Block:
      return kW8BlockTiles;
    case W8Kind::kInt8Group:
      return kW8GroupTiles;
  }
  return {};
}

std::string_view W8KindName(W8Kind kind) {
  switch (kind) {
    case W8Kind::kInt8:
      return "int8";
    case W8Kind::kE4m3:
      return "e4m3";
    case W8Kind::kE4m3Fast:
      return "e4m3_fast";
    case W8Kind::kE4m3Block:
      return "e4m3_block";
    case W8Kind::kInt8Group:
      return "int8_group";
  }
  return "";
}

std::string W8Problem::ToString() const {
  return absl::StrCat(std::string(W8KindName(kind)), " m=", m, " n=", n,
                      " k=", k);
}

LaunchSpec W8Spec(W8Kind kind, const W8Config& config) {
  std::string variant(ScheduleName(config.tile.schedule));
  if (config.cluster > 1) absl::StrAppend(&variant, "_c", config.cluster);
  return {.path = LinearPath::kWide,
          .kernel = absl::StrCat(std::string(kKernelPrefix),
                                 std::string(W8KindName(kind))),
          .tile_m = config.tile.rows,
          .tile_n = config.tile.columns,
          .variant = std::move(variant)};
}

std::optional<W8Config> ParseW8Spec(W8Kind kind, const LaunchSpec& spec) {
  for (const W8Tile& tile : kW8MmaTiles) {
    const W8Config config{tile, 1};
    if (W8Spec(kind, config) == spec) return config;
  }
  for (const W8Tile& tile : W8Tiles(kind)) {
    for (const int cluster : kClusters) {
      const W8Config config{tile, cluster};
      if (cluster <= tile.MaxCluster() && W8Spec(kind, config) == spec) {
        return config;
      }
    }
  }
  return std::nullopt;
}

LaunchSpec W8SiluMulSpec(W8Kind kind, const W8Config& config) {
  LaunchSpec spec = W8Spec(kind, config);
  spec.kernel += kSiluMulSuffix;
  return spec;
}

std::optional<W8Config> ParseW8SiluMulSpec(W8Kind kind,
                                           const LaunchSpec& spec) {
  for (const W8Tile& tile : kW8SiluMulTiles) {
    for (const int cluster : kClusters) {
      const W8Config config{tile, cluster};
      if (cluster <= tile.MaxCluster() && W8SiluMulSpec(kind, config) == spec) {
        return config;
      }
    }
  }
  return std::nullopt;
}

std::optional<W8Launch> PlanW8(const W8Problem& problem, const W8Config& config,
                               const DeviceInfo& device, int clusters) {
  if (!InRange(problem, config, device) || clusters < 1) return std::nullopt;
  const W8Tile& tile = config.tile;
  const int w_sharers = tile.SharesW() ? config.cluster : 1;
  const int x_sharers = tile.SharesW() ? 1 : config.cluster;
  const int64_t item_rows = int64_t{tile.rows} * w_sharers;
  const int64_t item_columns = int64_t{tile.columns} * x_sharers;
  const int64_t row_items = DivideUp(problem.m, item_rows);
  const int64_t column_items = DivideUp(problem.n, item_columns);
  if (row_items * column_items > kMaxItems) return std::nullopt;

  W8Launch launch;
  W8Params& params = launch.params;
  params = {};
  params.m = static_cast<int>(problem.m);
  params.n = static_cast<int>(problem.n);
  params.k_blocks = static_cast<int>(DivideUp(problem.k, kW8BlockK));
  params.cluster = config.cluster;
  // Rows of x that are not there need no room: what the tensor cores read
  // there reaches only rows of y that are not stored.
  const int64_t rows = std::min<int64_t>(problem.m, tile.rows);
  params.x_box = static_cast<int>(
      RoundUp(DivideUp(rows, int64_t{x_sharers}), int64_t{kEight}));
  params.w_box = tile.columns / w_sharers;
  params.row_items = static_cast<int>(row_items);
  params.column_items = static_cast<int>(column_items);
  // A power of two: the rows of a batch are one more often than not.
  const auto raster_rows =
      std::bit_floor(static_cast<uint64_t>(kRasterBytes / problem.k));
  params.raster = static_cast<int>(std::clamp<int64_t>(
      static_cast<int64_t>(raster_rows) / item_rows, 1, row_items));
  params.by_raster_items =
      DivideBy(int64_t{params.raster} * params.column_items);
  params.by_raster = DivideBy(params.raster);
  params.by_last = DivideBy(std::max(1, params.row_items % params.raster));

  if (tile.schedule == W8Schedule::kMma) {
    launch.ctas = static_cast<int>(row_items * column_items);
    launch.threads = tile.CtaWarps() * kWarpThreads;
  } else {
    launch.ctas = static_cast<int>(
                      std::min<int64_t>(row_items * column_items, clusters)) *
                  config.cluster;
    launch.threads = (tile.Warpgroups() + 1) * kW8WarpgroupThreads;
  }
  launch.shared_bytes = LayOutW8(problem.kind, tile).bytes;
  return launch;
}

std::optional<W8Launch> PlanW8(const W8Problem& problem, const W8Config& config,
                               const DeviceInfo& device) {
  return PlanW8(problem, config, device,
                device.multiprocessors / config.cluster);
}

std::span<const W8Tile> W8TilesFor(W8Kind kind, const DeviceInfo& device) {
  if (W8WgmmaIsCompiled() && Capability(device) == kHopper) {
    return W8Tiles(kind);
  }
  return kW8MmaTiles;
}

std::vector<W8Config> W8Configs(const W8Problem& problem,
                                const DeviceInfo& device,
                                std::span<const W8Tile> tiles) {
  std::vector<std::pair<double, W8Config>> guesses;
  for (const W8Tile& tile : tiles) {
    for (const int cluster : kClusters) {
      const W8Config config{tile, cluster};
      const auto launch = PlanW8(problem, config, device);
      if (!launch) continue;
      // A cluster of which one CTA has a tile gains nothing.
      const bool alone =
          tile.SharesW() ? problem.m <= tile.rows : problem.n <= tile.columns;
      if (cluster > 1 && alone) continue;
      // Half of the rows of a flat tile would be nothing.
      if (tile.SharesW() && 2 * problem.m <= tile.rows) continue;
      // W would come from L2 too often.
      if (tile.rows < 64 && problem.m > 16 * tile.rows) continue;
      guesses.emplace_back(GuessClocks(problem, config, *launch, device),
                           config);
    }
  }
  std::stable_sort(
      guesses.begin(), guesses.end(),
      [](const auto& a, const auto& b) { return a.first < b.first; });
  if (guesses.size() > kMaxGuesses) guesses.resize(kMaxGuesses);
  std::vector<W8Config> configs;
  configs.reserve(guesses.size());
  for (const auto& [clocks, config] : guesses) configs.push_back(config);
  return configs;
}

std::vector<LaunchSpec> W8Candidates(const W8Problem& problem,
                                     const DeviceInfo& device) {
  const std::span<const W8Tile> tiles = W8TilesFor(problem.kind, device);
  std::vector<LaunchSpec> specs;
  if (!IsCompiled(tiles.front())) return specs;
  for (const W8Config& config : W8Configs(problem, device, tiles)) {
    specs.push_back(W8Spec(problem.kind, config));
  }
  return specs;
}

bool W8Feasible(const W8Problem& problem, const LaunchSpec& spec,
                const DeviceInfo& device) {
  const auto config = ParseW8Spec(problem.kind, spec);
  return config.has_value() && IsCompiled(config->tile) &&
         PlanW8(problem, *config, device).has_value();
}

absl::Status CheckW8Device(W8Kind kind, const DeviceInfo& device) {
  const std::string name(W8KindName(kind));
  if (Capability(device) < LeastCapability(kind)) {
    return absl::UnimplementedError(absl::StrCat(
        name, " multiplications need compute capability ",
        LeastCapability(kind) / 10, ".", LeastCapability(kind) % 10,
        " or newer, not that of ", device.ToString()));
  }
  if (!IsCompiled(W8TilesFor(kind, device).front())) {
    return absl::UnimplementedError(
        absl::StrCat("this build has no kernels for ", name,
                     " multiplications on ", device.ToString()));
  }
  return absl::OkStatus();
}

std::vector<LaunchSpec> W8SiluMulCandidates(const W8Problem& problem,
                                            const DeviceInfo& device) {
  std::vector<LaunchSpec> specs;
  if (!W8WgmmaIsCompiled()) return specs;
  for (const W8Config& config : W8Configs(problem, device, kW8SiluMulTiles)) {
    specs.push_back(W8SiluMulSpec(problem.kind, config));
  }
  return specs;
}

bool W8SiluMulFeasible(const W8Problem& problem, const LaunchSpec& spec,
                       const DeviceInfo& device) {
  const auto config = ParseW8SiluMulSpec(problem.kind, spec);
  return W8WgmmaIsCompiled() && config.has_value() &&
         PlanW8(problem, *config, device).has_value();
}

}  // namespace nibble::kernels::cuda
