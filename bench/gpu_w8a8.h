// The sweep of 8-bit weights and activations: M x shape over the W8A8 kernels,
// with cuBLASLt on 16-bit, FP8 and INT8 operands beside them.
#pragma once

#include "absl/status/statusor.h"
#include "bench/gpu_linear.h"

namespace nibble::bench {

// Of `options` formats and the type of x are not looked at: y is BF16. The
// number of results that were wrong; RESOURCE_EXHAUSTED when the device's
// memory is too small, INVALID_ARGUMENT for shapes that have no packed form
// without padding.
absl::StatusOr<int> SweepW8a8(const SweepOptions& options,
                              const SweepTools& tools);

}  // namespace nibble::bench
