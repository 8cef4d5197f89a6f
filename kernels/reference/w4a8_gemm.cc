#include "kernels/reference/w4a8_gemm.h"

#include <algorithm>
#include <cmath>

namespace nibble::kernels::reference {

namespace {

// Sum: what holds sums of a group.
template <typename Sum, typename X>
W4A8Dot Dot(const W4Row& w, std::span<const X> x) {
  W4A8Dot dot;
  const auto k = static_cast<int64_t>(w.codes.size());
  for (int64_t begin = 0; begin < k; begin += w.group) {
    const int64_t end = std::min(begin + w.group, k);
    Sum products = 0, sum = 0, magnitude = 0;
    for (int64_t i = begin; i < end; ++i) {
      const Sum product = static_cast<Sum>(w.codes[i]) * x[i];
      products += product;
      sum += x[i];
      magnitude += std::abs(product);
    }
    const double scale = w.scales[begin / w.group];
    const double minimum = w.minimums[begin / w.group];
    dot.value += scale * static_cast<double>(products) +
                 minimum * static_cast<double>(sum);
    dot.magnitude += std::fabs(scale) * static_cast<double>(magnitude) +
                     std::fabs(minimum * static_cast<double>(sum));
  }
  return dot;
}

}  // namespace

W4A8Dot DotOfW4A8(const W4Row& w, std::span<const int8_t> x) {
  return Dot<int64_t>(w, x);
}
W4A8Dot DotOfW4A8(const W4Row& w, std::span<const float> x) {
  return Dot<double>(w, x);
}

}  // namespace nibble::kernels::reference
