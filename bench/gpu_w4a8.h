// The sweep of bench_kernels over the W4A8 kernels, each result checked against
// FP64 before it is timed, with cuBLASLt on BF16 operands beside them.
#pragma once

#include "absl/status/statusor.h"
#include "bench/gpu_linear.h"

namespace nibble::bench {

// The number of results that were wrong; RESOURCE_EXHAUSTED when the device's
// memory is too small.
absl::StatusOr<int> SweepW4a8(const SweepOptions& options,
                              const SweepTools& tools);

}  // namespace nibble::bench
