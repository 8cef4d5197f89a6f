// A linear layer's 4-bit codes packed for 8-bit activations, for the wide path.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/cuda/linear/linear_context.h"
#include "kernels/cuda/linear/pack.h"
#include "kernels/cuda/linear/w4a8.h"
#include "kernels/cuda/linear/w4a8_pack.h"
#include "kernels/cuda/runtime.h"
#include "kernels/linear.h"

namespace nibble::kernels::cuda {

// The format that multiplies weights exactly, the fastest of those.
W4a8Format W4a8FormatFor(const W4Numbers& numbers);

// Matrices of one layout, stacked along n, and their plan. Owned by a
// CudaLinear; immutable after Create; Run is called by the engine thread only.
class W4a8Linear final {
 public:
  // UNIMPLEMENTED where the device or the build has no kernels for it, where
  // codes are no integers or columns have an order of their own,
  // RESOURCE_EXHAUSTED where there is no memory for it.
  static absl::StatusOr<W4a8Linear> Create(const PackedW4& weights,
                                           const LinearOptions& options,
                                           const CudaLinearContext& context);

  // What Run needs of the context's scratch for max_rows rows.
  static int64_t ScratchBytes(int64_t max_rows, int64_t k);

  int64_t packed_bytes() const { return blocks_.bytes() + offsets_.bytes(); }
  const LinearPlan& plan() const { return plan_; }

  // As a LinearOp's, y being these matrices' columns. Multiplies the INT8 codes
  // of x, if x has codes, which must be INT8; else x in 16 bits is encoded
  // first. bias: device memory [n], or null.
  void Run(const LinearCall& call, const float* bias,
           const CudaLinearContext& context) const;

 private:
  W4a8Problem ProblemOf(int64_t rows) const {
    return {weights_.format, rows, weights_.n, weights_.k};
  }
  LinearPlan MakePlan(int64_t max_rows, const CudaLinearContext& context) const;

  DeviceBuffer blocks_, offsets_;
  W4a8Weights weights_;  // in the buffers
  LinearPlan plan_;
};

}  // namespace nibble::kernels::cuda
