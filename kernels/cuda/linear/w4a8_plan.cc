#include "kernels/cuda/linear/w4a8_plan.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace nibble::kernels::cuda {
namespace {

// Rows of x that CTAs walk over before they go to the next ones.
constexpr int kRasterRows = 2048;
constexpr int kEight = 8;  // a swizzled operand is made of eights of rows
constexpr int64_t kMaxRows = (int64_t{1} << 31) - 1024;  // of x and of W
constexpr int64_t kMaxItems = std::numeric_limits<int>::max();

bool IsKnown(W4a8Format format) {
  return std::find(std::begin(kW4a8Formats), std::end(kW4a8Formats), format) !=
         std::end(kW4a8Formats);
}

// What a launch may take, in clocks of an H200: good enough to order ways.
double GuessClocks(const W4a8Problem& problem, int columns,
                   const W4a8Launch& launch) {
  constexpr double kMemoryBytes = 2'700;  // a clock, of all
  constexpr double kStageOverhead =
      300;  // of a stage that products do not hide
  constexpr double kTile = 2'500;
  const double stage = std::max(4.0 * columns, kStageOverhead);
  const double items =
      static_cast<double>(launch.params.row_tiles) * launch.params.column_tiles;
  const double rounds = std::max(1.0, std::ceil(items / launch.ctas));
  const double clocks = rounds * (2.0 * launch.params.k_pairs * stage + kTile);
  const auto bytes = static_cast<double>(
      W4a8PackedBytes(problem.format, problem.n, problem.k));
  return std::max(clocks, bytes / kMemoryBytes + kTile);
}

}  // namespace

std::span<const int> W4a8Columns(W4a8Format format) {
  if (format.kind == W4a8Kind::kRerounded) return kW4a8ChainColumns;
  if (format.kind == W4a8Kind::kSubScale ||
      format.kind == W4a8Kind::kSubScaleSums) {
    return kW4a8SubScaleColumns;
  }
  return kW4a8DrainColumns;
}

std::string W4a8Name(W4a8Format format) {
  switch (format.kind) {
    case W4a8Kind::kRerounded:
      return absl::StrCat("rerounded_g", format.group);
    case W4a8Kind::kScale:
      return absl::StrCat("scale_g", format.group);
    case W4a8Kind::kScaleMin:
      return absl::StrCat("min_g", format.group);
    case W4a8Kind::kSubScale:
      return "sub_scale";
    case W4a8Kind::kSubScaleSums:
      return "sub_scale_sums";
    case W4a8Kind::kSubScaleFloat:
      return "sub_scale_float";
    case W4a8Kind::kE4m3:
      return absl::StrCat("e4m3_g", format.group);
  }
  return "";
}

std::string W4a8Problem::ToString() const {
  return absl::StrCat(W4a8Name(format), " m=", m, " n=", n, " k=", k);
}

LaunchSpec W4a8Spec(W4a8Format format, int columns) {
  return {.path = LinearPath::kWide,
          .kernel = absl::StrCat("w4a8_", W4a8Name(format)),
          .tile_m = columns,
          .tile_n = kW4a8TileRows};
}

std::optional<int> ParseW4a8Spec(W4a8Format format, const LaunchSpec& spec) {
  for (const int columns : W4a8Columns(format)) {
    if (W4a8Spec(format, columns) == spec) return columns;
  }
  return std::nullopt;
}

std::optional<W4a8Launch> PlanW4a8(const W4a8Problem& problem, int columns,
                                   const DeviceInfo& device) {
  if (device.compute_major != 9 || device.compute_minor != 0) {
    return std::nullopt;
  }
  const W4a8Shared shared = LayOutW4a8(problem.format, columns);
  if (device.shared_memory_bytes < shared.bytes) return std::nullopt;
  if (!IsKnown(problem.format) || problem.m < 1 || problem.m > kMaxRows ||
      problem.n < 1 || problem.n > kMaxRows || problem.k < 1 ||
      problem.k > kW4a8MaxK) {
    return std::nullopt;
  }
  const int64_t row_tiles = W4a8Tiles(problem.n);
  const int64_t column_tiles = DivideUp(problem.m, int64_t{columns});
  if (row_tiles * column_tiles > kMaxItems) return std::nullopt;
  W4a8Launch launch;
  W4a8Params& params = launch.params;
  params = {};
  params.m = static_cast<int>(problem.m);
  params.n = static_cast<int>(problem.n);
  params.min_stages =
      static_cast<int>(W4a8MinStages(problem.format, problem.k));
  params.k_pairs = static_cast<int>(W4a8Stages(problem.k) / 2);
  // Rows of x that are not there need no room: what the tensor cores read
  // there reaches only rows of y that are not stored.
  params.x_box = static_cast<int>(
      RoundUp(std::min<int64_t>(problem.m, columns), int64_t{kEight}));
  params.row_tiles = static_cast<int>(row_tiles);
  params.column_tiles = static_cast<int>(column_tiles);
  params.raster = std::max(1, kRasterRows / columns);
  params.by_raster_items = DivideBy(int64_t{params.raster} * params.row_tiles);
  params.by_raster = DivideBy(params.raster);
  params.by_last = DivideBy(std::max(1, params.column_tiles % params.raster));
  launch.ctas = static_cast<int>(
      std::min<int64_t>(row_tiles * column_tiles, device.multiprocessors));
  launch.shared_bytes = shared.bytes;
  return launch;
}

std::vector<LaunchSpec> W4a8Candidates(const W4a8Problem& problem,
                                       const DeviceInfo& device) {
  std::vector<std::pair<double, int>> guesses;
  if (!W4a8IsCompiled()) return {};
  for (const int columns : W4a8Columns(problem.format)) {
    const auto launch = PlanW4a8(problem, columns, device);
    if (!launch.has_value()) continue;
    guesses.emplace_back(GuessClocks(problem, columns, *launch), columns);
  }
  std::stable_sort(
      guesses.begin(), guesses.end(),
      [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<LaunchSpec> specs;
  specs.reserve(guesses.size());
  for (const auto& [clocks, columns] : guesses) {
    specs.push_back(W4a8Spec(problem.format, columns));
  }
  return specs;
}

bool W4a8Feasible(const W4a8Problem& problem, const LaunchSpec& spec,
                  const DeviceInfo& device) {
  const auto columns = ParseW4a8Spec(problem.format, spec);
  return W4a8IsCompiled() && columns.has_value() &&
         PlanW4a8(problem, *columns, device).has_value();
}

}  // namespace nibble::kernels::cuda
