// Outputs of linear layers in FP64, for the tests of the CPU backend.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

#include "tests/support/tolerance.h"

namespace nibble::test {

// One output in FP64 and the greatest error that FP32 sums may have. By value.
struct ExactSum {
  double value = 0;
  double bound = 0;
};

// `x` is what the codes of a row stand for, so that only rounding is left. A
// block's part is a product and a sum or two, all rounded once, and no larger
// than the block's greatest weight (with its minimum: 4 times) times sum |x|.
inline ExactSum SumExactly(std::span<const float> w,
                           std::span<const double> x) {
  constexpr size_t kBlock = 32;
  ExactSum sum;
  double size = 0;
  for (size_t begin = 0; begin < w.size(); begin += kBlock) {
    double greatest = 0, total = 0;
    for (size_t i = begin; i < std::min(begin + kBlock, w.size()); ++i) {
      sum.value += static_cast<double>(w[i]) * x[i];
      greatest = std::fmax(greatest, std::fabs(w[i]));
      total += std::fabs(x[i]);
    }
    size += 4 * greatest * total;
  }
  const double roundings = 2.0 * static_cast<double>(w.size()) / kBlock + 8;
  sum.bound = kEpsilonF32 * roundings * size + 1e-30;
  return sum;
}

}  // namespace nibble::test
