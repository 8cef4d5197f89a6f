// The W4A8 kernels in builds for no Hopper GPU.
#include "base/check.h"
#include "kernels/cuda/linear/w4a8_plan.h"

namespace nibble::kernels::cuda {

bool W4a8IsCompiled() { return false; }

void LaunchW4a8(const W4a8Args& /*args*/, const LaunchSpec& /*spec*/,
                const DeviceInfo& /*device*/, CUstream_st* /*stream*/,
                const W4a8LaunchOptions& /*options*/) {
  NIBBLE_CHECK(W4a8IsCompiled());
}

}  // namespace nibble::kernels::cuda
