// The W8A8 kernels in builds for no Hopper GPU.
#include "base/check.h"
#include "kernels/cuda/linear/w8a8_plan.h"

namespace nibble::kernels::cuda {

bool W8IsCompiled() { return false; }

void LaunchW8(const W8Args& /*args*/, const LaunchSpec& /*spec*/,
              const DeviceInfo& /*device*/, CUstream_st* /*stream*/,
              const W8LaunchOptions& /*options*/) {
  NIBBLE_CHECK(W8IsCompiled());
}

}  // namespace nibble::kernels::cuda
