// The fastest of several ways to do the same multiplication.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "bench/gpu_timing.h"
#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/linear/w4a16.h"
#include "kernels/linear.h"

namespace nibble::bench {

// Of the candidates for args' shape the fastest with a cold L2, for each
// kernel (LaunchSpec::kernel).
std::map<std::string, kernels::LaunchSpec> FastestW4(
    const GpuTimer& timer, const kernels::cuda::W4Args& args,
    const kernels::cuda::DeviceInfo& device);

// cuBLASLt's multiplication with the algorithm that proved fastest.
struct CublasChoice {
  kernels::cuda::CublasLtMatmul matmul;
  int algorithm = 0;
};
absl::StatusOr<CublasChoice> FastestCublas(
    const GpuTimer& timer, const kernels::cuda::CublasLt& library,
    const kernels::cuda::CublasLtProblem& problem, const void* x, const void* w,
    void* y);

// Enqueues it; a failure is fatal, as the same call has succeeded before.
void RunCublas(const CublasChoice& choice, const void* x, const void* w,
               void* y, const kernels::cuda::Stream& stream);

}  // namespace nibble::bench
