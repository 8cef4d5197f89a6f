// Results of the device against FP64 sums on the host.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

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

}  // namespace nibble::bench
