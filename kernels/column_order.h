// How act-order sorts the columns of a GPTQ weight.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/weight_view.h"

namespace nibble::kernels {

// Column c of the packed matrix is column ColumnOrder[c] of `weight` (and so of
// x): by ascending group, in their old order within one; empty when that
// changes nothing. INVALID_ARGUMENT names the group when g_idx gives it more or
// fewer columns than a group has.
absl::StatusOr<std::vector<int32_t>> ColumnOrder(const WeightView& weight);

}  // namespace nibble::kernels
