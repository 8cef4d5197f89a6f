#include "kernels/cpu/linear_plan.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/activations.h"
#include "kernels/cpu/packed_format.h"

namespace nibble::kernels::cpu {
namespace {

// Panels that are measured: they fit the second cache level, for with more
// than a quad of rows the kernels are bound by their arithmetic.
constexpr int64_t kMeasuredBytes = 256 << 10;
// Of which the fastest counts: other work on the machine only adds.
constexpr int kMeasurements = 5;

constexpr char kPadded[] = "padded";
constexpr char kApart[] = "apart";

// Runs some panels of a matrix on rows of zeros, whose arithmetic takes as
// long as any other. A local of Measure.
class TailTimer final {
 public:
  explicit TailTimer(const PackedMatrix& matrix)
      : matrix_(matrix),
        panels_(std::clamp<int64_t>(kMeasuredBytes / matrix.panel_bytes, 1,
                                    matrix.panels)),
        blocks_(matrix.k / kBlock),
        x_(kMaxDotRows / kQuad * blocks_) {}

  // The faster way to take the tail of `rows` rows.
  RowTail Better(int rows) {
    double padded = Seconds(rows, RowTail::kPadded);  // and brings the weights
    double apart = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kMeasurements; ++i) {
      padded = std::min(padded, Seconds(rows, RowTail::kPadded));
      apart = std::min(apart, Seconds(rows, RowTail::kApart));
    }
    return apart < padded ? RowTail::kApart : RowTail::kPadded;
  }

 private:
  double Seconds(int rows, RowTail tail) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    alignas(64) float sums[kMaxDotRows * kPanelRows];
    for (int64_t panel = 0; panel < panels_; ++panel) {
      for (int row = 0; row < rows;) {
        const int count = RowsAtOnce(row % kQuad, rows - row, tail);
        const int variant = VariantFor(row % kQuad, count);
        matrix_.kernels.by_variant[variant](
            {.panel = matrix_.data + panel * matrix_.panel_bytes,
             .blocks = blocks_,
             .header_blocks = matrix_.header_blocks,
             .x = x_.data() + row / kQuad * blocks_,
             .quad_stride = blocks_,
             .lane = row % kQuad,
             .out = sums});
        row += count;
      }
    }
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  const PackedMatrix& matrix_;
  int64_t panels_;
  int64_t blocks_;
  std::vector<QuadBlock> x_;
};

LaunchSpec Spec(LinearPath path, QuantFormat format, std::string variant) {
  const bool narrow = path == LinearPath::kNarrow;
  return {.path = path,
          .kernel = absl::StrCat(narrow ? "gemv_" : "gemm_",
                                 std::string(Name(format))),
          .tile_m = narrow ? kMaxDotRows : kMaxTaskRows,
          .tile_n = kPanelRows,
          .variant = std::move(variant)};
}

LinearPlan Measure(const PackedMatrix& matrix) {
  // A tail of one row is measured for each bucket of M; tails of two fare
  // alike, those of three are always padded.
  struct Range {
    int64_t max_rows;
    int measured_rows;
  };
  constexpr std::array kRanges = {Range{2 * kQuad, kQuad + 1},
                                  Range{kMaxDotRows, 2 * kQuad + 1}};
  const bool choice = matrix.packed.has_value();
  std::vector<LinearPlan::Bucket> buckets;
  std::string variant;
  for (const Range& range : kRanges) {
    if (choice) {
      const bool apart =
          TailTimer(matrix).Better(range.measured_rows) == RowTail::kApart;
      variant = apart ? kApart : kPadded;
    }
    const LaunchSpec spec = Spec(LinearPath::kNarrow, matrix.format, variant);
    if (!buckets.empty() && buckets.back().spec == spec) buckets.pop_back();
    buckets.push_back({.max_rows = range.max_rows, .spec = spec});
  }
  buckets.push_back({.max_rows = std::numeric_limits<int64_t>::max(),
                     .spec = Spec(LinearPath::kWide, matrix.format, variant)});
  return LinearPlan(std::move(buckets));
}

}  // namespace

const LinearPlan& LinearPlans::PlanFor(const PackedMatrix& matrix) {
  const Shape shape{matrix.format, matrix.header_blocks, matrix.panels,
                    matrix.k};
  const auto found = plans_.find(shape);
  if (found != plans_.end()) return found->second;
  return plans_.emplace(shape, Measure(matrix)).first->second;
}

RowTail TailOf(const LaunchSpec& spec) {
  return spec.variant == kApart ? RowTail::kApart : RowTail::kPadded;
}

}  // namespace nibble::kernels::cpu
