// The 8-bit packing of a linear layer, for the wide path.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/cuda/linear/linear_context.h"
#include "kernels/cuda/linear/w8a8.h"
#include "kernels/cuda/runtime.h"
#include "kernels/linear.h"
#include "kernels/weight_view.h"

namespace nibble::kernels::cuda {

// Matrices stacked along n, rounded to 8 bits with a scale for each row of W,
// and their plan. Owned by a CudaLinear; immutable after Create; Run is called
// by the engine thread only.
class WideLinear final {
 public:
  // Rounds the parts (of one k) with a search for scales. UNIMPLEMENTED where
  // the device or the build has no kernels for it, INVALID_ARGUMENT for a k
  // that they do not take, RESOURCE_EXHAUSTED where there is no memory for it.
  static absl::StatusOr<WideLinear> Create(std::span<const WeightView> parts,
                                           const LinearOptions& options,
                                           const CudaLinearContext& context);

  // What Run needs of the context's scratch for max_rows rows.
  static int64_t ScratchBytes(int64_t max_rows, int64_t k);

  int64_t packed_bytes() const { return codes_.bytes() + scales_.bytes(); }
  const LinearPlan& plan() const { return plan_; }

  // Multiplies the codes of x, if x has codes, which must be of this packing's
  // kind; else x in 16 bits is encoded first. bias: device memory [n], or null.
  void Run(const LinearCall& call, const float* bias,
           const CudaLinearContext& context) const;

 private:
  explicit WideLinear(WidePacking packing) : packing_(packing) {}

  W8Kind kind() const {
    return packing_ == WidePacking::kInt8 ? W8Kind::kInt8 : W8Kind::kE4m3;
  }
  W8Problem ProblemOf(int64_t rows) const;
  LinearPlan MakePlan(int64_t max_rows, const CudaLinearContext& context) const;

  WidePacking packing_;
  DeviceBuffer codes_, scales_;
  W8Weights weights_;  // in the buffers
  LinearPlan plan_;
};

}  // namespace nibble::kernels::cuda
