// The W8A8 kernel for every device in builds without CUDA.
#include "base/check.h"
#include "kernels/cuda/linear/w8a8_plan.h"

namespace nibble::kernels::cuda {

bool W8MmaIsCompiled() { return false; }

void LaunchW8(const W8Args& /*args*/, const LaunchSpec& /*spec*/,
              const DeviceInfo& /*device*/, CUstream_st* /*stream*/,
              const W8LaunchOptions& /*options*/) {
  NIBBLE_CHECK(W8MmaIsCompiled());
}

}  // namespace nibble::kernels::cuda
