// The quantizers of activations against the device's copy bandwidth.
#pragma once

#include "absl/status/statusor.h"
#include "bench/gpu_linear.h"

namespace nibble::bench {

// Times every operation and encoding at options.m rows of the usual widths,
// and with options.every each way to spread rows over threads; each result is
// checked first. The number of results that were wrong; RESOURCE_EXHAUSTED
// when the device's memory is too small.
absl::StatusOr<int> SweepQuantize(const SweepOptions& options,
                                  const SweepTools& tools);

}  // namespace nibble::bench
