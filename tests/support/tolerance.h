// Errors as ratios of norms, to be compared with bounds made from epsilon and
// the number of terms.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

namespace nibble::test {

inline constexpr double kEpsilonF32 = std::numeric_limits<float>::epsilon();

// |actual - expected| / |expected|, Euclidean norms; infinity when a NaN, a
// stray infinity or a different size spoils the comparison, or when something
// stands where all should be 0.
inline double RelativeError(std::span<const float> actual,
                            std::span<const float> expected) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (actual.size() != expected.size()) return kInfinity;
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double e = expected[i];
    const double d = actual[i] - e;
    difference += d * d;
    norm += e * e;
  }
  if (!std::isfinite(difference) || !std::isfinite(norm)) return kInfinity;
  if (difference == 0) return 0;
  return norm == 0 ? kInfinity : std::sqrt(difference / norm);
}

// The greatest |actual - expected|; infinity as above.
inline double GreatestError(std::span<const float> actual,
                            std::span<const float> expected) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (actual.size() != expected.size()) return kInfinity;
  double greatest = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double d = std::fabs(static_cast<double>(actual[i]) - expected[i]);
    if (!std::isfinite(d)) return kInfinity;
    greatest = std::fmax(greatest, d);
  }
  return greatest;
}

}  // namespace nibble::test
