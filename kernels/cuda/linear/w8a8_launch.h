// What the launchers of the W8A8 kernels share.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/linear/w8a8.h"
#include "kernels/cuda/linear/w8a8_plan.h"

namespace nibble::kernels::cuda {

// PlanW8 with the parameters complete. Fatal where `config` cannot run `args`.
W8Launch PlanW8Launch(const W8Args& args, const W8Config& config,
                      const DeviceInfo& device, int clusters);

// LaunchW8 of a tile for Hopper. `args` have been checked, m >= 1; fatal in
// builds without its kernels.
void LaunchW8Wgmma(const W8Args& args, W8Config config,
                   const DeviceInfo& device, CUstream_st* stream,
                   const W8LaunchOptions& options);

}  // namespace nibble::kernels::cuda
