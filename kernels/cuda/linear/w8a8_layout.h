// Where the codes of 8-bit weights are for the W8A8 kernels. No CUDA in here.
#pragma once

#include <cstdint>

#include "base/checked_math.h"

namespace nibble::kernels::cuda {

// Rows of W whose order is changed together. A matrix of n rows is packed as
// RoundUp(n, kW8RowGroup) rows, the last ones zeros.
inline constexpr int64_t kW8RowGroup = 32;
// Rows of codes begin at multiples of so many bytes, as tensor copies want it.
inline constexpr int64_t kW8PitchBytes = 16;
// k of one step of the kernels, and of a block of scales.
inline constexpr int64_t kW8BlockK = 128;
// Rows of W that share a scale where scales are those of blocks.
inline constexpr int64_t kW8BlockN = 128;

// The packed row of row `row` of W, and the row of packed row `row`: the same
// function. In the accumulators of wgmma a thread has neighbours 2 t and
// 2 t + 1 of each eight columns (t = lane % 4). Of 32 rows in this order it has
// eight neighbours, which it can store at once.
constexpr int64_t W8PackedRow(int64_t row) {
  const int64_t in_group = row % kW8RowGroup;
  return row - in_group + in_group % 8 / 2 * 8 + in_group / 8 * 2 + row % 2;
}

// Gate/up weights: so many rows of gate, then as many of up, and so on, each
// padded to whole units with rows of zeros. A thread of a part of two units has
// the gate and the up of the same eights of outputs, which make up a block of
// 128 that may share a scale, and so may the 128 rows of a block of W.
inline constexpr int64_t kW8GateUpUnit = 128;
constexpr int64_t W8GateUpRows(int64_t f) {
  return 2 * RoundUp(f, kW8GateUpUnit);
}

constexpr int64_t W8PackedRows(int64_t n) { return RoundUp(n, kW8RowGroup); }
constexpr int64_t W8Pitch(int64_t k) { return RoundUp(k, kW8PitchBytes); }

}  // namespace nibble::kernels::cuda
