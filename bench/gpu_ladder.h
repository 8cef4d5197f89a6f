// Q4_0 times a vector, step by step from byte loads to our kernel, against an
// FP16 matrix: the tables of the article that ladder_kernels.h names, for the
// GPU at hand.
#pragma once

#include "absl/status/statusor.h"
#include "bench/gpu_linear.h"

namespace nibble::bench {

// Prints the tables; the number of results that were wrong.
absl::StatusOr<int> RunLadder(const SweepTools& tools);

}  // namespace nibble::bench
