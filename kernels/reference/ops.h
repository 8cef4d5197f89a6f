// The operations of kernels/backend.h in scalar code on host memory: what
// every backend is tested against. Dot products, norms and softmax sums are
// accumulated in FP64; results are stored as FP32.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"

namespace nibble::kernels::reference {

// sum of a[i] * b[i], i < k, in a fixed order.
double Dot(const float* a, const float* b, int64_t k);
double Dot(const double* a, const double* b, int64_t k);

// One row: out[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i], all [k].
void RmsNormRow(const float* x, const float* weight, float eps, int64_t k,
                float* out);

// Turns `heads` heads of head_dim elements in place for one position.
void RopeRow(const RopeParams& rope, int32_t position, int32_t heads,
             int32_t head_dim, float* row);

// Writes a row k, v [kv_heads * head_dim] to its slot, rounding to the pages'
// type (kF32, kF16, kBF16).
void WriteKvRow(const float* k, const float* v, int64_t slot,
                const KvLayerView& kv);

// Causal attention of one row q [heads * head_dim] at `position` of the
// sequence with the given pages; out has q's shape.
struct AttentionRow {
  const float* q = nullptr;
  int32_t position = 0;
  std::span<const int32_t> page_ids;  // > position / page_size of them
};
void AttentionOneRow(const AttentionRow& row, const KvLayerView& kv,
                     const AttentionShape& shape, float* out);

// One row: out[i] = silu(gate_up[i]) * gate_up[f + i], i < f.
void SiluMulRow(const float* gate_up, int64_t f, float* out);

}  // namespace nibble::kernels::reference
