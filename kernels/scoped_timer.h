// Time spent in a scope.
#pragma once

#include <chrono>

namespace nibble::kernels {

// Adds the seconds until it dies to a total. Lives on a stack.
class ScopedTimer final {
 public:
  explicit ScopedTimer(double* total_seconds)
      : total_seconds_(total_seconds), start_(Clock::now()) {}
  ~ScopedTimer() {
    *total_seconds_ +=
        std::chrono::duration<double>(Clock::now() - start_).count();
  }
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double* total_seconds_;
  Clock::time_point start_;
};

}  // namespace nibble::kernels
