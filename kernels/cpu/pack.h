// Weights of a file into the panels that the kernels stream.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/weight_view.h"

namespace nibble::kernels::cpu {

// Bytes of one panel of 16 rows of `weight`: by PackedFormat for integer
// formats; for float ones its elements, [k][16], unchanged.
int64_t PanelBytes(QuantFormat format, int64_t k);

// Writes rows [16 panel, 16 panel + 16) to `out` [PanelBytes], zero-filled
// before; rows from weight.n on stay zero, and so are their results.
void PackPanel(const WeightView& weight, int64_t panel, std::byte* out);

}  // namespace nibble::kernels::cpu
