#include <algorithm>

#include "kernels/cpu/attention.h"

namespace nibble::kernels::cpu {

void MakeTiles(const StepLayout& layout, int32_t max_rows,
               std::vector<RowTile>* tiles) {
  tiles->clear();
  for (size_t s = 0; s + 1 < layout.row_begin.size(); ++s) {
    const std::span<const int32_t> page_ids = layout.page_ids.subspan(
        layout.page_begin[s], layout.page_begin[s + 1] - layout.page_begin[s]);
    const int32_t end = layout.row_begin[s + 1];
    for (int32_t row = layout.row_begin[s]; row < end; row += max_rows) {
      tiles->push_back({.first_row = row,
                        .rows = std::min(max_rows, end - row),
                        .position = layout.positions[row],
                        .page_ids = page_ids});
    }
  }
  // The longest first, so that threads end at about the same time.
  const auto cost = [](const RowTile& tile) {
    return int64_t{tile.rows} * (tile.position + tile.rows);
  };
  std::sort(tiles->begin(), tiles->end(),
            [&cost](const RowTile& a, const RowTile& b) {
              return cost(a) != cost(b) ? cost(a) > cost(b)
                                        : a.first_row < b.first_row;
            });
}

}  // namespace nibble::kernels::cpu
