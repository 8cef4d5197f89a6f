// The input of linear layers on the CPU.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/host_memory.h"
#include "kernels/linear.h"

namespace nibble::kernels::cpu {

// Activations along k that share one scale. Every integer weight format has
// blocks of 32 or of a multiple.
inline constexpr int kBlock = 32;
// Rows that stand together, so that a kernel finds the operands of four dot
// products within three cache lines.
inline constexpr int kQuad = 4;

// What a row's zero point and the weights' offset add to an integer dot product
// is a sum of two 16-bit products, made by one instruction: neg_zero times the
// sum of the weight codes, neg_sum times the offset.
struct Correction {
  int16_t neg_zero;  // -zero
  int16_t neg_sum;   // -(sum of (code - zero))
};

// One block of four rows: x[r][i] is scale[r] * (codes[r][i] - zero), codes in
// [-127, 127], rounded to nearest.
//
// scale = (greatest - least) / 254, both counted with 0: a block with one
// great value, the usual kind in the hidden states of a decoder, gets steps
// half as long as max |x| / 127 would be. On SmolLM2-135M that divides the KL
// divergence from FP32 activations by 2.4.
//
// The sums serve the weights' minimums and offsets: a weight is
// scale * (code - offset) or scale * code + minimum, so its part of a dot
// product needs the sum of the row's (code - zero) only.
struct alignas(64) QuadBlock {
  int8_t codes[kQuad][kBlock];
  float scale[kQuad];
  float sum[kQuad];       // scale * (sum of (code - zero))
  Correction all[kQuad];  // of the 32 codes
  Correction low[kQuad];  // of the first 16
};
static_assert(sizeof(QuadBlock) == 192, "three cache lines");

// Which encodings of its activations a width k needs: set by the linear
// layers made for it. Owned by the backend.
struct ActivationUse {
  bool codes = false;   // a layer with integer weights reads them
  bool floats = false;  // a layer with float weights reads them
};

// Rows in 8-bit codes and in FP32; only what `use` says is written, and only
// what was written takes memory. Owned by the model, engine thread only.
class CpuActivations final : public Activations {
 public:
  static absl::StatusOr<std::unique_ptr<CpuActivations>> Create(
      int64_t max_rows, int64_t k, const ActivationUse* use);

  const ActivationUse& use() const { return *use_; }
  int64_t blocks() const { return k() / kBlock; }
  // Block 0 of rows 4 quad to 4 quad + 3; blocks() of them in a row.
  QuadBlock* Quad(int64_t quad) {
    return reinterpret_cast<QuadBlock*>(codes_.data()) + quad * blocks();
  }
  const QuadBlock* Quad(int64_t quad) const {
    return reinterpret_cast<const QuadBlock*>(codes_.data()) + quad * blocks();
  }
  // [k], rows float_stride() apart.
  float* FloatRow(int64_t row) {
    return reinterpret_cast<float*>(floats_.data()) + row * float_stride();
  }
  const float* FloatRow(int64_t row) const {
    return reinterpret_cast<const float*>(floats_.data()) +
           row * float_stride();
  }
  int64_t float_stride() const { return k(); }

 private:
  CpuActivations(int64_t max_rows, int64_t k, const ActivationUse* use)
      : Activations(max_rows, k), use_(use) {}

  const ActivationUse* use_;
  HostMemory codes_;  // QuadBlock [ceil(max_rows / 4)][k / 32]
  HostMemory
      floats_;  // [max_rows, k], also Attention's result before it is coded
};

}  // namespace nibble::kernels::cpu
