// One step of a model as flat arrays.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace nibble::model {

// The rows of one step: decode rows first, then prompt rows. Owned by the
// engine, refilled each step (capacity is kept); engine thread only.
struct Batch {
  int32_t decode_rows = 0;
  std::vector<int32_t> tokens;      // [rows]
  std::vector<int32_t> positions;   // [rows]
  std::vector<int64_t> slots;       // [rows], page * page_size + offset
  std::vector<int32_t> row_begin;   // [sequences + 1]
  std::vector<int32_t> page_begin;  // [sequences + 1]
  std::vector<int32_t> page_ids;    // [page_begin.back()]
  std::vector<int32_t> logit_rows;  // rows whose logits are wanted, ascending

  int32_t rows() const { return static_cast<int32_t>(tokens.size()); }
  int32_t sequences() const {
    return static_cast<int32_t>(row_begin.size()) - 1;
  }
  kernels::StepLayout Layout() const {
    return {rows(),    decode_rows, positions, slots,
            row_begin, page_begin,  page_ids};
  }
  void Clear() {
    decode_rows = 0;
    tokens.clear();
    positions.clear();
    slots.clear();
    row_begin.assign(1, 0);
    page_begin.assign(1, 0);
    page_ids.clear();
    logit_rows.clear();
  }
};

}  // namespace nibble::model
