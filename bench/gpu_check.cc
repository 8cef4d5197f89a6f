#include "bench/gpu_check.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>
#include <vector>

namespace nibble::bench {

void ParallelFor(int64_t count, const std::function<void(int64_t)>& body) {
  std::atomic<int64_t> next = 0;
  std::vector<std::thread> threads;
  const int64_t wanted = std::min<int64_t>(
      count, std::max(1u, std::thread::hardware_concurrency()));
  for (int64_t i = 0; i < wanted; ++i) {
    threads.emplace_back([&] {
      for (int64_t at = next++; at < count; at = next++) body(at);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

double Dot(std::span<const double> x, const float* w) {
  constexpr size_t kLanes = 8;  // independent sums, or latency is all there is
  double sums[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += x[i + lane] * static_cast<double>(w[i + lane]);
    }
  }
  double sum = 0;
  for (const double part : sums) sum += part;
  for (; i < x.size(); ++i) sum += x[i] * static_cast<double>(w[i]);
  return sum;
}

void ErrorSum::Add(double result, double reference) {
  difference_ += (result - reference) * (result - reference);
  reference_ += reference * reference;
}

double ErrorSum::Relative() const {
  return std::sqrt(difference_ / reference_);
}

}  // namespace nibble::bench
