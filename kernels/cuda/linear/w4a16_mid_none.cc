// The kernel for many rows in builds for no Hopper GPU.
#include "base/check.h"
#include "kernels/cuda/linear/w4a16_mid.h"

namespace nibble::kernels::cuda {

bool MidIsCompiled() { return false; }

void LaunchMid(const W4Args& /*args*/, const MidConfig& /*config*/,
               const DeviceInfo& /*device*/, CUstream_st* /*stream*/,
               const W4LaunchOptions& /*options*/) {
  NIBBLE_CHECK(MidIsCompiled());
}

}  // namespace nibble::kernels::cuda
