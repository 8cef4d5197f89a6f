// Which kernels run a linear layer for how many rows: measured at load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>

#include "kernels/cpu/dot.h"
#include "kernels/cpu/float_tiles.h"
#include "kernels/cpu/packed_format.h"
#include "kernels/linear.h"
#include "kernels/quant_format.h"

namespace nibble::kernels::cpu {

// Rows that meet a panel of weights before the next panel: one pass over the
// weights serves them all. Whole calls of 16 rows and whole float tiles.
inline constexpr int kMaxTaskRows = 144;
static_assert(kMaxTaskRows % kMaxDotRows == 0 &&
              kMaxTaskRows % kMaxFloatTileRows == 0);

// The packed weights of one matrix. Borrowed from its layer. By value.
struct PackedMatrix {
  QuantFormat format = QuantFormat::kF32;
  std::optional<PackedFormat> packed = std::nullopt;  // of integer formats
  int64_t header_blocks = 0;  // blocks of 32 weights that share a header
  int64_t k = 0;
  int64_t panels = 0;
  int64_t panel_bytes = 0;
  const std::byte* data = nullptr;  // [panels][panel_bytes]
  DotKernels kernels = {};          // of integer formats
};

// The plans of all shapes that a backend's layers have had: each is measured
// once. Owned by a backend; loading thread only.
class LinearPlans final {
 public:
  // Takes about a millisecond for a new shape of an integer format; there is
  // nothing to choose for the others.
  const LinearPlan& PlanFor(const PackedMatrix& matrix);

 private:
  // Header blocks, panels, k.
  using Shape = std::tuple<QuantFormat, int64_t, int64_t, int64_t>;
  std::map<Shape, LinearPlan> plans_;
};

// What the plan's variant means for the tail of a call's rows.
RowTail TailOf(const LaunchSpec& spec);

}  // namespace nibble::kernels::cpu
