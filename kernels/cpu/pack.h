// Weights of a file into the panels that the kernels stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/weight_view.h"

namespace nibble::kernels::cpu {

// Bytes of one panel of 16 rows of `weight`: by PackedFormat for integer
// formats; for float ones its elements, [k][16], unchanged.
int64_t PanelBytes(const WeightView& weight);

// Writes rows [16 panel, 16 panel + 16) to `out` [PanelBytes], zero-filled
// before; rows from weight.n on stay zero, and so are their results. `order`
// is ColumnOrder(weight) (kernels/column_order.h).
void PackPanel(const WeightView& weight, std::span<const int32_t> order,
               int64_t panel, std::byte* out);

}  // namespace nibble::kernels::cpu
