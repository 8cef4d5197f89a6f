#include "kernels/cuda/linear/w4a16.h"

#include "kernels/cuda/linear/w4a16_small.h"

namespace nibble::kernels::cuda {

int64_t W4ScratchBytes(int64_t /*m*/, int64_t /*k*/) { return 0; }

std::vector<LaunchSpec> W4Candidates(const W4Weights& w, int64_t m,
                                     W4Epilogue epilogue,
                                     const DeviceInfo& device) {
  std::vector<LaunchSpec> specs;
  for (const SmallConfig& config : SmallConfigs(w, m, epilogue, device)) {
    specs.push_back(SmallSpec(config, w.k));
  }
  return specs;
}

bool W4Feasible(const W4Weights& w, int64_t m, W4Epilogue epilogue,
                const LaunchSpec& spec, const DeviceInfo& device) {
  const std::optional<SmallConfig> config = ParseSmallSpec(spec);
  return config.has_value() && spec == SmallSpec(*config, w.k) &&
         PlanSmall(w, m, epilogue, *config, device).has_value();
}

}  // namespace nibble::kernels::cuda
