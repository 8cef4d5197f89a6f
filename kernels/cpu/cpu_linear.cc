#include "kernels/cpu/cpu_linear.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checked_math.h"
#include "base/status.h"
#include "kernels/column_order.h"
#include "kernels/cpu/float_dot.h"
#include "kernels/cpu/float_tiles.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/store_sums.h"
#include "kernels/reference/dequant.h"
#include "kernels/scoped_timer.h"

namespace nibble::kernels::cpu {
namespace {

constexpr int64_t kCacheLine = 64;

// Tasks a thread gets on average: enough that one which loses its core for a
// while is waited for briefly, few enough that their start costs nothing.
constexpr int64_t kTasksPerThread = 6;

// Weight bytes times quads of rows below which starting another thread costs
// more than it saves (about a microsecond's work).
constexpr int64_t kLeastTaskBytes = 8 << 10;

absl::Status CheckPart(const WeightView& part, int64_t k) {
  const FormatInfo& info = Info(part.format);
  const auto refuse = [&part](auto... why) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", std::string(part.name), "': ", why...));
  };
  const bool floats = info.code == CodeType::kFloat;
  if (!floats && !PackedFormatOf(part)) {
    return refuse("its format ", std::string(info.name),
                  " is not one that the CPU backend runs");
  }
  if (part.n <= 0 || part.k <= 0) {
    return refuse("its shape [", part.n, ", ", part.k, "] has a size below 1");
  }
  if (part.k != k) {
    return refuse("k = ", part.k, " differs from the ", k,
                  " of the matrix it is stacked on");
  }
  if (k % info.block_elements != 0) {
    return refuse("k = ", k, " is no multiple of ", info.block_elements,
                  ", the block of ", std::string(info.name));
  }
  if (IsBlockFormat(part.format)) return absl::OkStatus();
  if (k % kBlock != 0) {
    return refuse("k = ", k, " is no multiple of ", kBlock,
                  ", the block of its activations");
  }
  return CheckWeight(part);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuLinear>> CpuLinear::Create(
    std::span<const WeightView> parts, const LinearOptions& options,
    const Context& context) {
  if (parts.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("linear layer '", options.name, "' has no matrix"));
  }
  if (options.silu_mul) {
    return absl::UnimplementedError(absl::StrCat(
        "linear layer '", options.name, "': the CPU does not fuse SiLU"));
  }
  if (options.wide != WidePacking::kNone) {
    return absl::UnimplementedError(
        absl::StrCat("linear layer '", options.name,
                     "': the CPU has one packing for all paths"));
  }
  std::unique_ptr<CpuLinear> op(new CpuLinear());
  op->context_ = context;
  op->k_ = parts[0].k;
  for (const WeightView& weight : parts) {
    NIBBLE_RETURN_IF_ERROR(op->AddPart(weight, options));
  }
  if (options.bias != nullptr) {
    op->bias_.assign(options.bias, options.bias + op->n_);
  }
  if (options.multiply) {
    NIBBLE_RETURN_IF_ERROR(op->PackParts(options));
    // The first part is the largest, or as large as the others.
    op->plan_ = context.plans->PlanFor(op->parts_[0].packed);
    NIBBLE_RETURN_IF_ERROR(op->ReserveTiles(options));
  }
  return op;
}

absl::Status CpuLinear::AddPart(const WeightView& weight,
                                const LinearOptions& options) {
  NIBBLE_RETURN_IF_ERROR(CheckPart(weight, k_));
  Part part;
  part.weight = weight;
  part.first_column = n_;
  part.first_panel = panels_;
  part.packed = {.format = weight.format,
                 .packed = PackedFormatOf(weight),
                 .header_blocks = HeaderBlocks(weight),
                 .k = weight.k,
                 .panels = DivideUp<int64_t>(weight.n, kPanelRows),
                 .panel_bytes = PanelBytes(weight)};
  if (part.packed.packed) {
    part.packed.kernels = DotKernelsFor(context_.target, *part.packed.packed);
  }
  if (options.multiply) {
    NIBBLE_ASSIGN_OR_RETURN(part.ordered, FindOrder(weight, options));
  }
  n_ += weight.n;
  panels_ += part.packed.panels;
  parts_.push_back(part);
  return absl::OkStatus();
}

absl::StatusOr<int> CpuLinear::FindOrder(const WeightView& weight,
                                         const LinearOptions& options) {
  NIBBLE_ASSIGN_OR_RETURN(std::vector<int32_t> columns, ColumnOrder(weight));
  if (columns.empty()) return kAsIs;
  // Parts of one layer are usually sorted alike.
  for (size_t i = 0; i < ordered_.size(); ++i) {
    if (ordered_[i].columns == columns) return static_cast<int>(i);
  }
  static constexpr ActivationUse kBoth{.codes = true, .floats = true};
  OrderedInput input{.columns = std::move(columns), .x = nullptr};
  NIBBLE_ASSIGN_OR_RETURN(input.x,
                          CpuActivations::Create(options.max_rows, k_, &kBoth));
  ordered_.push_back(std::move(input));
  return static_cast<int>(ordered_.size()) - 1;
}

absl::Status CpuLinear::PackParts(const LinearOptions& options) {
  int64_t bytes = 0;
  for (const Part& part : parts_) {
    // A little more than the file, which is in the address space already.
    bytes += RoundUp(part.packed.panels * part.packed.panel_bytes, kCacheLine);
  }
  absl::StatusOr<ArenaSpan> weights = context_.arena->Allocate(bytes);
  if (!weights.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "linear layer '", options.name, "': ", weights.status().message()));
  }
  weights_ = *std::move(weights);
  std::byte* at = weights_.data;
  for (Part& part : parts_) {
    PackedMatrix& packed = part.packed;
    packed.data = at;
    context_.pool->ParallelFor(packed.panels, [&](int64_t panel, int) {
      PackPanel(part.weight, OrderOf(part), panel,
                at + panel * packed.panel_bytes);
    });
    at += RoundUp(packed.panels * packed.panel_bytes, kCacheLine);
  }
  return absl::OkStatus();
}

bool CpuLinear::HasFloats() const {
  return std::any_of(parts_.begin(), parts_.end(), [](const Part& part) {
    return !part.packed.packed.has_value();
  });
}

absl::Status CpuLinear::ReserveTiles(const LinearOptions& options) {
  if (!HasFloats()) return absl::OkStatus();
  const std::optional<int64_t> elements =
      CheckedMul(RoundUp<int64_t>(options.max_rows, kMaxFloatTileRows), k_);
  const std::optional<int64_t> bytes =
      CheckedMul<int64_t>(elements.value_or(-1), sizeof(float));
  if (!elements || !bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("linear layer '", options.name, "': ", options.max_rows,
                     " rows of ", k_, " exceed the address space"));
  }
  if (*bytes <= context_.tiles->size_bytes()) return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(*context_.tiles, HostMemory::Allocate(*bytes));
  return absl::OkStatus();
}

std::span<const int32_t> CpuLinear::OrderOf(const Part& part) const {
  if (part.ordered == kAsIs) return {};
  return ordered_[part.ordered].columns;
}

ActivationUse CpuLinear::use() const {
  ActivationUse use;
  if (weights_.size_bytes == 0) return use;
  for (const Part& part : parts_) {
    const bool codes = part.packed.packed && part.ordered == kAsIs;
    use.codes = use.codes || codes;
    use.floats = use.floats || !codes;
  }
  return use;
}

CpuLinear::Split CpuLinear::SplitWork(int64_t rows) const {
  Split split;
  const LaunchSpec& spec = plan_.ForRows(rows);
  split.path = spec.path;
  split.tail = TailOf(spec);
  // tile_m of the plan: the most rows that share one pass over a panel. Tasks
  // get the same number, but of whole kernel calls and tiles.
  const int64_t row_unit =
      HasFloats() ? std::lcm(kMaxDotRows, kMaxFloatTileRows) : kMaxDotRows;
  split.rows_per_task =
      RoundUp(DivideUp(rows, DivideUp<int64_t>(rows, spec.tile_m)), row_unit);
  split.row_tasks = DivideUp(rows, split.rows_per_task);
  const int64_t quads =
      DivideUp<int64_t>(std::min(rows, split.rows_per_task), kQuad);
  const int64_t panel_work =
      std::max<int64_t>(weights_.size_bytes / panels_ * quads, 1);
  const int64_t wanted_tasks =
      std::max<int64_t>(context_.pool->threads() * kTasksPerThread, 1);
  split.panels_per_task =
      std::max(DivideUp(panels_ * split.row_tasks, wanted_tasks),
               DivideUp(kLeastTaskBytes, panel_work));
  split.panels_per_task = std::min(split.panels_per_task, panels_);
  split.panel_tasks = DivideUp(panels_, split.panels_per_task);
  return split;
}

void CpuLinear::Run(const LinearCall& call) const {
  const int64_t rows = call.y.rows;
  if (rows == 0) return;
  const ScopedTimer timer(context_.linear_seconds);
  NIBBLE_CHECK(weights_.data != nullptr);
  NIBBLE_CHECK(call.x != nullptr);
  NIBBLE_CHECK_EQ(call.x->k(), k_);
  NIBBLE_CHECK_EQ(call.y.cols, n_);
  NIBBLE_CHECK_GE(call.row_begin, 0);
  NIBBLE_CHECK_LE(call.row_begin + rows, call.x->max_rows());
  OrderColumns(call);
  const Split split = SplitWork(rows);
  if (split.path == LinearPath::kWide) PackTiles(call);
  context_.pool->ParallelFor(
      split.row_tasks * split.panel_tasks,
      [&](int64_t task, int) { RunTask(call, split, task); });
}

void CpuLinear::OrderColumns(const LinearCall& call) const {
  const auto& from = static_cast<const CpuActivations&>(*call.x);
  for (const OrderedInput& input : ordered_) {
    CpuActivations& to = *input.x;
    NIBBLE_CHECK_LE(call.y.rows, to.max_rows());
    context_.pool->ParallelFor(call.y.rows, [&](int64_t row, int) {
      const float* x = from.FloatRow(call.row_begin + row);
      float* ordered = to.FloatRow(row);
      for (int64_t c = 0; c < k_; ++c) ordered[c] = x[input.columns[c]];
      EncodeRow(ordered, k_,
                {.codes = to.Quad(row / kQuad),
                 .lane = static_cast<int>(row % kQuad)});
    });
  }
}

void CpuLinear::PackTiles(const LinearCall& call) const {
  if (!HasFloats()) return;
  const auto& x = static_cast<const CpuActivations&>(*call.x);
  const int tile_rows = FloatTileRows();
  const FloatTilesView tiles = TilesOf(call);
  NIBBLE_CHECK_LE(
      tiles.count * tile_rows * k_ * static_cast<int64_t>(sizeof(float)),
      context_.tiles->size_bytes());
  context_.pool->ParallelFor(tiles.count, [&](int64_t tile, int) {
    const int64_t row = tile * tile_rows;
    const auto rows =
        static_cast<int>(std::min<int64_t>(tile_rows, call.y.rows - row));
    PackFloatTile(x.FloatRow(call.row_begin + row), x.float_stride(), rows,
                  tile, tiles);
  });
}

FloatTilesView CpuLinear::TilesOf(const LinearCall& call) const {
  return {.data = reinterpret_cast<float*>(context_.tiles->data()),
          .k = k_,
          .count = DivideUp<int64_t>(call.y.rows, FloatTileRows())};
}

void CpuLinear::RunTask(const LinearCall& call, const Split& split,
                        int64_t task) const {
  const int64_t first = task % split.panel_tasks * split.panels_per_task;
  const int64_t last = std::min(first + split.panels_per_task, panels_);
  const int64_t begin = task / split.panel_tasks * split.rows_per_task;
  const RowRange rows = {begin,
                         std::min(begin + split.rows_per_task, call.y.rows),
                         split.path, split.tail};
  for (const Part& part : parts_) {
    const int64_t part_first = std::max(first, part.first_panel);
    const int64_t part_last =
        std::min(last, part.first_panel + part.packed.panels);
    for (int64_t panel = part_first; panel < part_last; ++panel) {
      RunPanel(call, part, panel - part.first_panel, rows);
    }
  }
}

void CpuLinear::RunPanel(const LinearCall& call, const Part& part,
                         int64_t panel, const RowRange& rows) const {
  if (part.packed.packed) {
    IntegerTiles(call, part, panel, rows);
  } else if (rows.path == LinearPath::kWide) {
    FloatTiles(call, part, panel, rows);
  } else {
    FloatRows(call, part, panel, rows);
  }
}

void CpuLinear::IntegerTiles(const LinearCall& call, const Part& part,
                             int64_t panel, const RowRange& range) const {
  const bool as_is = part.ordered == kAsIs;
  const auto& x = as_is ? static_cast<const CpuActivations&>(*call.x)
                        : *ordered_[part.ordered].x;
  const int64_t first_row = as_is ? call.row_begin : 0;
  DotCall dot{.panel = part.packed.data + panel * part.packed.panel_bytes,
              .blocks = x.blocks(),
              .header_blocks = part.packed.header_blocks,
              .quad_stride = x.blocks()};
  alignas(kCacheLine) float sums[kMaxDotRows * kPanelRows];
  dot.out = sums;
  for (int64_t row = range.begin; row < range.end;) {
    const int64_t x_row = first_row + row;
    const int lane = static_cast<int>(x_row % kQuad);
    const int rows = RowsAtOnce(lane, range.end - row, range.tail);
    const int variant = VariantFor(lane, rows);
    // Kernels of whole quads compute the rows before ours too.
    const int skipped = variant >= kFirstQuadVariant ? lane : 0;
    dot.x = x.Quad(x_row / kQuad);
    dot.lane = lane - skipped;
    part.packed.kernels.by_variant[variant](dot);
    StoreTile(call, part, panel, row, rows, sums + skipped * kPanelRows);
    row += rows;
  }
}

void CpuLinear::FloatRows(const LinearCall& call, const Part& part,
                          int64_t panel, const RowRange& range) const {
  const auto& x = static_cast<const CpuActivations&>(*call.x);
  alignas(kCacheLine) float sums[kMaxFloatRows * kPanelRows];
  for (int64_t row = range.begin; row < range.end; row += kMaxFloatRows) {
    const auto rows =
        static_cast<int>(std::min<int64_t>(kMaxFloatRows, range.end - row));
    FloatPanelDot(part.weight.format,
                  {.panel = part.packed.data + panel * part.packed.panel_bytes,
                   .k = k_,
                   .x = x.FloatRow(call.row_begin + row),
                   .x_stride = x.float_stride(),
                   .rows = rows,
                   .out = sums});
    StoreTile(call, part, panel, row, rows, sums);
  }
}

void CpuLinear::FloatTiles(const LinearCall& call, const Part& part,
                           int64_t panel, const RowRange& range) const {
  // Tasks begin at whole tiles.
  const int tile_rows = FloatTileRows();
  const int64_t rows = range.end - range.begin;
  alignas(kCacheLine) float sums[kMaxTaskRows * kPanelRows];
  FloatTilesDot(part.weight.format,
                {.panel = part.packed.data + panel * part.packed.panel_bytes,
                 .x = TilesOf(call),
                 .first = range.begin / tile_rows,
                 .count = DivideUp<int64_t>(rows, tile_rows),
                 .out = sums});
  StoreTile(call, part, panel, range.begin, rows, sums);
}

void CpuLinear::StoreTile(const LinearCall& call, const Part& part,
                          int64_t panel, int64_t row, int64_t rows,
                          const float* sums) const {
  const int64_t within = panel * kPanelRows;
  const int64_t column = part.first_column + within;
  const int64_t columns = std::min<int64_t>(kPanelRows, part.weight.n - within);
  static constexpr float kNoBias[kPanelRows] = {};
  const PanelSums panel_sums = {
      .sums = sums,
      .rows = rows,
      .columns = columns,
      .bias = bias_.empty() ? kNoBias : bias_.data() + column,
      .y = call.y.RowF32(row) + column,
      .y_stride = call.y.row_stride};
  StoreSums(panel_sums, call.epilogue);
}

void CpuLinear::GatherRows(std::span<const int32_t> ids, TensorView y) const {
  NIBBLE_CHECK_EQ(static_cast<int64_t>(ids.size()), y.rows);
  NIBBLE_CHECK_EQ(y.cols, k_);
  context_.pool->ParallelFor(y.rows, [&](int64_t i, int) {
    NIBBLE_CHECK(ids[i] >= 0 && ids[i] < n_);
    const auto after = std::upper_bound(
        parts_.begin(), parts_.end(), int64_t{ids[i]},
        [](int64_t id, const Part& part) { return id < part.first_column; });
    const Part& part = *std::prev(after);
    reference::DequantizeRow(part.weight, ids[i] - part.first_column,
                             y.RowF32(i));
  });
}

}  // namespace nibble::kernels::cpu
