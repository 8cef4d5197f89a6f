// Operations on one row of activations, ending in the encodings that linear
// layers read. A row's result depends on that row alone.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/cpu/activations.h"

namespace nibble::kernels::cpu {

// Where a row goes. By value; null where that encoding is not wanted.
struct RowOut {
  QuadBlock* codes = nullptr;  // block 0 of the row's quad; k % 32 = 0 then
  int lane = 0;                // of the row in its quad
  float* floats = nullptr;     // [k]
};

// x / sqrt(mean(x^2) + eps) * weight, all [k].
void RmsNormRow(const float* x, const float* weight, float eps, int64_t k,
                const RowOut& out);

// silu(gate_up[i]) * gate_up[f + i], i < f, gate_up [2 f].
void SiluMulRow(const float* gate_up, int64_t f, const RowOut& out);

// x [k] as it is; out.floats may be x.
void EncodeRow(const float* x, int64_t k, const RowOut& out);

// The rotation of one position, expanded to a factor for every element:
// y[i] = x[i] * cosine[i] + x[partner of i] * sine[i]. Borrowed.
struct RopeRow {
  const float* cosine = nullptr;  // [rotary_dims]
  const float* sine = nullptr;    // [rotary_dims], negative for the first of
                                  // a pair
  int32_t rotary_dims = 0;
  RopeParams::Pairing pairing = RopeParams::Pairing::kAdjacent;
};

// Turns `heads` heads of head_dim elements in place.
void ApplyRope(const RopeRow& rope, int32_t heads, int32_t head_dim,
               float* row);

// to[i] = from[i] rounded to FP16, i < count.
void StoreHalves(const float* from, int64_t count, uint16_t* to);

// What greedy sampling needs to know of logits [V], V >= 1.
struct BestLogit {
  bool valid = false;  // no NaN, no +infinity, not all -infinity
  int32_t id = 0;      // of the greatest, the lowest id among equals
};
BestLogit FindBestLogit(std::span<const float> logits);

}  // namespace nibble::kernels::cpu
