// Weights of a file into the panels that the kernels stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/weight_view.h"

namespace nibble::kernels::cpu {

// Bytes of one panel of 16 rows of `weight`: by PackedFormat for integer
// formats; for float ones its elements, [k][16], unchanged.
int64_t PanelBytes(const WeightView& weight);

// Column c of the packed matrix is column ColumnOrder[c] of `weight` (and so of
// x): by ascending group, in their old order within one; empty when that
// changes nothing. INVALID_ARGUMENT names the group when act-order gives it
// more or fewer columns than a group has.
absl::StatusOr<std::vector<int32_t>> ColumnOrder(const WeightView& weight);

// Writes rows [16 panel, 16 panel + 16) to `out` [PanelBytes], zero-filled
// before; rows from weight.n on stay zero, and so are their results. `order`
// is ColumnOrder(weight).
void PackPanel(const WeightView& weight, std::span<const int32_t> order,
               int64_t panel, std::byte* out);

}  // namespace nibble::kernels::cpu
