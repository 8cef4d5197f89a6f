// The W8A8 kernel for Hopper in builds for no Hopper GPU.
#include "base/check.h"
#include "kernels/cuda/linear/w8a8_launch.h"

namespace nibble::kernels::cuda {

bool W8WgmmaIsCompiled() { return false; }

void LaunchW8Wgmma(const W8Args& /*args*/, W8Config /*config*/,
                   const DeviceInfo& /*device*/, CUstream_st* /*stream*/,
                   const W8LaunchOptions& /*options*/) {
  NIBBLE_CHECK(W8WgmmaIsCompiled());
}

}  // namespace nibble::kernels::cuda
