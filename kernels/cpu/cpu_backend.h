// The backend that runs on the processor: 8-bit dot products, repacked
// weights, a pool of threads.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu/target.h"
#include "kernels/cpu/thread_pool.h"

namespace nibble::kernels {

struct CpuOptions {
  // Threads that share an operation, the caller among them; 0: as many as the
  // process may use (affinity mask and CPU quota of its cgroup). Ignored when
  // `pool` is given.
  int threads = 0;
  // A pool shared with other backends of the process. shared_ptr: the last of
  // the backends that use it, in whatever order they go, ends it.
  std::shared_ptr<cpu::ThreadPool> pool = nullptr;
  // The best instruction set to use, for tests and benches.
  cpu::CpuTarget max_target = cpu::CpuTarget::kAvx512Vnni;
};

// Keys and values are kept in FP16, activations of layers with integer
// weights in 8-bit codes (kernels/cpu/activations.h). Make the linear layers
// before the first step: they decide which encodings activations get.
//
// INVALID_ARGUMENT when options.threads is negative or above 1,024.
absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(
    const CpuOptions& options = {});

}  // namespace nibble::kernels
