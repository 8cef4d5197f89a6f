#include "model/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace nibble::model {
namespace {

// YaRN (Peng et al., arXiv:2309.00071, section 3.2): the share of pair i that
// is extrapolated (1) rather than interpolated (0). As in the authors' code,
// the ramp runs over the index of the pair, between the pairs that turn
// beta_fast and beta_slow times over the original context.
class YarnRamp final {
 public:
  explicit YarnRamp(const RopeSpec& spec)
      : low_(std::max(0.0, std::floor(PairTurning(spec, spec.beta_fast)))),
        high_(std::min(spec.rotary_dims - 1.0,
                       std::ceil(PairTurning(spec, spec.beta_slow)))) {}

  double operator()(int32_t pair) const {
    constexpr double kLeastWidth = 0.001;  // the ramp may be a step
    const double position = (pair - low_) / std::max(kLeastWidth, high_ - low_);
    return 1.0 - std::clamp(position, 0.0, 1.0);
  }

 private:
  // The (fractional) pair that makes `rotations` turns: solves
  // original_context * base^(-2 i / dims) = 2 pi rotations for i.
  static double PairTurning(const RopeSpec& spec, double rotations) {
    return spec.rotary_dims *
           std::log(spec.original_context /
                    (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(spec.frequency_base));
  }

  double low_;
  double high_;
};

}  // namespace

kernels::RopeParams MakeRope(const RopeSpec& spec) {
  const int32_t pairs = spec.rotary_dims / 2;
  NIBBLE_CHECK(spec.frequency_divisors.empty() ||
               spec.frequency_divisors.size() == static_cast<size_t>(pairs));
  kernels::RopeParams rope;
  rope.inverse_frequency.resize(pairs);
  double attention_factor = spec.attention_factor;
  if (spec.scaling == RopeScaling::kYarn && spec.factor > 1) {
    // Equation 22 of the paper: 1 / sqrt(t) on both q and k.
    attention_factor *= 0.1 * std::log(spec.factor) + 1.0;
  }
  rope.attention_factor = static_cast<float>(attention_factor);
  for (int32_t i = 0; i < pairs; ++i) {
    double frequency =
        std::pow(spec.frequency_base, -2.0 * i / spec.rotary_dims);
    if (!spec.frequency_divisors.empty()) {
      frequency /= spec.frequency_divisors[i];
    }
    if (spec.scaling == RopeScaling::kLinear) frequency /= spec.factor;
    if (spec.scaling == RopeScaling::kYarn) {
      const double kept = YarnRamp(spec)(i);
      frequency *= kept + (1 - kept) / spec.factor;
    }
    rope.inverse_frequency[i] = static_cast<float>(frequency);
  }
  return rope;
}

}  // namespace nibble::model
