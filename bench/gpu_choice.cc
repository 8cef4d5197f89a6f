#include "bench/gpu_choice.h"

#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace nibble::bench {

using kernels::LaunchSpec;
using kernels::cuda::CublasLtMatmul;
using kernels::cuda::W4Args;

namespace {

constexpr int kAlgorithms = 16;
constexpr int kTrials = 5;
// A way that takes so many times the best's time at first gets no more trials.
constexpr double kHopeless = 1.5;

// Microseconds of the way, or more than it would need to be of interest.
double TrialUs(const GpuTimer& timer, double best_us,
               const std::function<void()>& enqueue) {
  const double first_us = timer.ColdUs(enqueue, 1);
  if (first_us > kHopeless * best_us) return first_us;
  return timer.ColdUs(enqueue, kTrials);
}

}  // namespace

std::map<std::string, LaunchSpec> FastestW4(
    const GpuTimer& timer, const W4Args& args,
    const kernels::cuda::DeviceInfo& device) {
  std::map<std::string, LaunchSpec> fastest;
  std::map<std::string, double> best_us;
  for (const LaunchSpec& spec :
       W4Candidates(args.w, args.m, args.epilogue, device)) {
    double& best = best_us.try_emplace(spec.kernel, 1e9).first->second;
    const double us = TrialUs(timer, best, [&] {
      LaunchW4(args, spec, device, timer.stream().get());
    });
    if (us < best) {
      best = us;
      fastest[spec.kernel] = spec;
    }
  }
  return fastest;
}

absl::StatusOr<CublasChoice> FastestCublas(
    const GpuTimer& timer, const kernels::cuda::CublasLt& library,
    const kernels::cuda::CublasLtProblem& problem, const void* x, const void* w,
    void* y) {
  NIBBLE_ASSIGN_OR_RETURN(CublasLtMatmul matmul,
                          CublasLtMatmul::Make(library, problem, kAlgorithms));
  int fastest = -1;
  double best_us = 1e9;
  cudaStream_t stream = timer.stream().get();
  for (int i = 0; i < matmul.algorithms(); ++i) {
    if (!matmul.Run(i, x, w, y, stream).ok()) continue;
    const double us = TrialUs(timer, best_us, [&] {
      NIBBLE_CHECK(matmul.Run(i, x, w, y, stream).ok());
    });
    if (us < best_us) {
      best_us = us;
      fastest = i;
    }
  }
  if (fastest < 0) {
    return absl::InternalError("no algorithm of cuBLASLt runs");
  }
  return CublasChoice{std::move(matmul), fastest};
}

void RunCublas(const CublasChoice& choice, const void* x, const void* w,
               void* y, const kernels::cuda::Stream& stream) {
  NIBBLE_CHECK(choice.matmul.Run(choice.algorithm, x, w, y, stream.get()).ok());
}

}  // namespace nibble::bench
