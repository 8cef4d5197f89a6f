#include "kernels/cpu/activations.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/status.h"

namespace nibble::kernels::cpu {

absl::StatusOr<std::unique_ptr<CpuActivations>> CpuActivations::Create(
    int64_t max_rows, int64_t k, const ActivationUse* use) {
  if (max_rows <= 0 || k <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("activations need at least one row and column, not [",
                     max_rows, ", ", k, "]"));
  }
  const auto quad_blocks =
      CheckedMul(DivideUp<int64_t>(max_rows, kQuad), k / kBlock);
  const auto elements = CheckedMul(max_rows, k);
  const auto code_bytes =
      CheckedMul<int64_t>(quad_blocks.value_or(-1), sizeof(QuadBlock));
  const auto float_bytes =
      CheckedMul<int64_t>(elements.value_or(-1), sizeof(float));
  if (!quad_blocks || !elements || !code_bytes || !float_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "activations [", max_rows, ", ", k, "] exceed the address space"));
  }
  std::unique_ptr<CpuActivations> activations(
      new CpuActivations(max_rows, k, use));
  NIBBLE_ASSIGN_OR_RETURN(activations->codes_,
                          HostMemory::Allocate(*code_bytes));
  NIBBLE_ASSIGN_OR_RETURN(activations->floats_,
                          HostMemory::Allocate(*float_bytes));
  return activations;
}

}  // namespace nibble::kernels::cpu
