// Batches for tests, put together row by row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/checked_math.h"
#include "model/batch.h"

namespace nibble::test {

// Which rows of a sequence's share want logits.
enum class Logits { kNone, kLast, kAll };

// A sequence's share of a step: `tokens` at positions `first` and on. Borrows
// what it points to.
struct StepShare {
  std::span<const int32_t> tokens;
  int32_t first = 0;
  std::span<const int32_t> pages;  // by position; may be more than needed
  Logits logits = Logits::kAll;
};

// Appends a sequence's rows. Generated rows come before prompt rows: set
// batch.decode_rows to batch.rows() after the last of them.
inline void AppendShare(model::Batch& batch, int32_t page_size,
                        const StepShare& share) {
  if (batch.row_begin.empty()) batch.Clear();
  const auto count = static_cast<int32_t>(share.tokens.size());
  for (int32_t i = 0; i < count; ++i) {
    const int32_t position = share.first + i;
    if (share.logits == Logits::kAll ||
        (share.logits == Logits::kLast && i == count - 1)) {
      batch.logit_rows.push_back(batch.rows());
    }
    batch.tokens.push_back(share.tokens[i]);
    batch.positions.push_back(position);
    batch.slots.push_back(int64_t{share.pages[position / page_size]} *
                              page_size +
                          position % page_size);
  }
  batch.row_begin.push_back(batch.rows());
  const int32_t pages = DivideUp(share.first + count, page_size);
  batch.page_ids.insert(batch.page_ids.end(), share.pages.begin(),
                        share.pages.begin() + pages);
  batch.page_begin.push_back(static_cast<int32_t>(batch.page_ids.size()));
}

}  // namespace nibble::test
