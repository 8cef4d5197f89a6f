// Results of the device against FP64 sums on the host.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "bench/gpu_operands.h"
#include "kernels/tensor.h"

namespace nibble::bench {

// Calls body(i) for i in [0, count) from all processors at once.
void ParallelFor(int64_t count, const std::function<void(int64_t)>& body);

// sum of x[i] * w[i], FP64.
double Dot(std::span<const double> x, const float* w);

// Results and what they should be, as they come in. By value.
class ErrorSum final {
 public:
  void Add(double result, double reference);
  // ||result - reference|| / ||reference||; NaN if a result was.
  double Relative() const;

 private:
  double difference_ = 0;  // squares
  double reference_ = 0;
};

// What y = x W^T is, for any rows of x [rows, k]; W is held dequantized. Owned
// by the sweep, used by one thread.
class LinearReference final {
 public:
  // x: kBF16 or kF16 bits [rows, k], borrowed.
  LinearReference(const Weights& weights, Shape shape, kernels::DType x_dtype,
                  std::span<const uint16_t> x);

  // The error of y [m, n], bits of the type of x, over all of three rows and
  // 300 outputs anywhere; NaN if any element is.
  double RelativeError(std::span<const uint16_t> y, int64_t m);

 private:
  float ToFloat(uint16_t bits) const;
  std::vector<double> XRow(int64_t row) const;
  // Row `row` of y, kept: every M has some of the same rows.
  const std::vector<double>& YRow(int64_t row);

  Shape shape_;
  kernels::DType x_dtype_;
  std::span<const uint16_t> x_;
  std::vector<float> w_;  // [n, k]
  std::map<int64_t, std::vector<double>> y_rows_;
};

}  // namespace nibble::bench
