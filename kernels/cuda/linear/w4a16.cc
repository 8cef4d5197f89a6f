#include "kernels/cuda/linear/w4a16.h"

#include <algorithm>

#include "kernels/cuda/linear/w4a16_mid.h"
#include "kernels/cuda/linear/w4a16_small.h"

namespace nibble::kernels::cuda {
namespace {

// The kernel for few rows is never the faster one above this, where there is
// another, nor the one for many rows up to that.
constexpr int64_t kMostSmallRows = 64;
constexpr int64_t kFewestMidRows = 9;

std::vector<LaunchSpec> MidSpecs(const W4Weights& w, int64_t m,
                                 W4Epilogue epilogue,
                                 const DeviceInfo& device) {
  std::vector<LaunchSpec> specs;
  if (!MidIsCompiled()) return specs;
  for (const MidConfig& config : MidConfigs(w, m, epilogue, device)) {
    specs.push_back(MidSpec(config));
  }
  return specs;
}

}  // namespace

int64_t W4ScratchBytes(int64_t m, int64_t k) {
  if (m == 0 || !MidIsCompiled()) return 0;
  return LayOutMidScratch(m, k).total_bytes;
}

std::vector<LaunchSpec> W4Candidates(const W4Weights& w, int64_t m,
                                     W4Epilogue epilogue,
                                     const DeviceInfo& device) {
  const std::vector<SmallConfig> small =
      SmallConfigs(w, m, epilogue, device, MidIsCompiled());
  // Where shared memory cannot hold x the other kernel may win for few rows.
  const bool small_is_slow =
      small.empty() || !KeepsX(small.front().variant.source);
  std::vector<LaunchSpec> specs;
  if (m >= kFewestMidRows || small_is_slow) {
    specs = MidSpecs(w, m, epilogue, device);
  }
  if (m > kMostSmallRows && !specs.empty()) return specs;
  const bool small_first = !small_is_slow && m < 2 * kFewestMidRows;
  auto at = small_first ? specs.begin() : specs.end();
  for (const SmallConfig& config : small) {
    at = specs.insert(at, SmallSpec(config)) + 1;
  }
  return specs;
}

bool W4Feasible(const W4Weights& w, int64_t m, W4Epilogue epilogue,
                const LaunchSpec& spec, const DeviceInfo& device) {
  if (const auto config = ParseSmallSpec(spec)) {
    return spec == SmallSpec(*config) &&
           (config->cluster == 1 || MidIsCompiled()) &&
           PlanSmall(w, m, epilogue, *config, device).has_value();
  }
  if (const auto config = ParseMidSpec(spec)) {
    return MidIsCompiled() &&
           PlanMid(w, m, epilogue, *config, device).has_value();
  }
  return false;
}

}  // namespace nibble::kernels::cuda
