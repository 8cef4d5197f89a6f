#include <algorithm>

#include "base/checked_math.h"
#include "kernels/cpu/attention.h"

namespace nibble::kernels::cpu {
namespace {

// Walks that a thread gets at least where several rows, of different lengths
// perhaps, are to be shared out.
constexpr int32_t kWalksPerThread = 4;

}  // namespace

void AttentionPlan::Make(const StepLayout& layout, int32_t kv_heads,
                         int32_t group, int32_t threads) {
  MakeTiles(layout, std::max(kTileQueries / group, 1));
  walks_.clear();
  states_ = 0;
  for (size_t i = 0; i < tiles_.size(); ++i) {
    const auto tile = static_cast<int32_t>(i);
    if (tiles_[i].rows == 1) {
      ShareRow(tile, kv_heads, threads);
      continue;
    }
    for (int32_t head = 0; head < kv_heads; ++head) {
      walks_.push_back({.tile = tile, .first_kv_head = head, .kv_heads = 1});
    }
  }
}

// One walk reads the keys of all heads, in order; few rows are cut up along
// their keys, and then by heads, so that each thread has something to do.
void AttentionPlan::ShareRow(int32_t tile, int32_t kv_heads, int32_t threads) {
  const int32_t blocks = BlocksAt(tiles_[tile].position);
  const auto tiles = static_cast<int32_t>(tiles_.size());
  const int32_t wanted =
      tiles == 1 ? threads : DivideUp(kWalksPerThread * threads, tiles);
  const int32_t pieces = std::min(wanted, blocks);
  const int32_t heads_each =
      DivideUp(kv_heads, std::min(DivideUp(wanted, pieces), kv_heads));
  if (pieces == 1 && heads_each == kv_heads) {
    walks_.push_back({.tile = tile, .kv_heads = kv_heads});
    return;
  }
  for (int32_t piece = 0; piece < pieces; ++piece) {
    for (int32_t head = 0; head < kv_heads; head += heads_each) {
      walks_.push_back({.tile = tile,
                        .first_kv_head = head,
                        .kv_heads = std::min(heads_each, kv_heads - head),
                        .first = blocks * piece / pieces,
                        .last = blocks * (piece + 1) / pieces,
                        .state = states_});
    }
  }
  states_ += blocks;
}

// Tiles of at most `max_rows` rows, the longest walks first.
void AttentionPlan::MakeTiles(const StepLayout& layout, int32_t max_rows) {
  tiles_.clear();
  for (size_t s = 0; s + 1 < layout.row_begin.size(); ++s) {
    const std::span<const int32_t> page_ids = layout.page_ids.subspan(
        layout.page_begin[s], layout.page_begin[s + 1] - layout.page_begin[s]);
    const int32_t end = layout.row_begin[s + 1];
    for (int32_t row = layout.row_begin[s]; row < end; row += max_rows) {
      tiles_.push_back({.first_row = row,
                        .rows = std::min(max_rows, end - row),
                        .position = layout.positions[row],
                        .page_ids = page_ids});
    }
  }
  // The longest first, so that threads end at about the same time.
  const auto cost = [](const RowTile& tile) {
    return int64_t{tile.rows} * (tile.position + tile.rows);
  };
  std::sort(tiles_.begin(), tiles_.end(),
            [&cost](const RowTile& a, const RowTile& b) {
              return cost(a) != cost(b) ? cost(a) > cost(b)
                                        : a.first_row < b.first_row;
            });
}

}  // namespace nibble::kernels::cpu
