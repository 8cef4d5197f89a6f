// What a processor can do at best, measured.
#pragma once

#include <chrono>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "kernels/cpu/target.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/host_memory.h"

namespace nibble::bench {

// The least time of one call of `body` among those that fit `budget_seconds`
// (3 at least): other work on the machine only adds.
double BestSeconds(double budget_seconds, absl::FunctionRef<void()> body);

// Memory that `threads` threads read together, a piece of `bytes` (rounded up
// to 16 KB) at a time, each piece from memory and not from a cache. One thread.
class MemoryReader final {
 public:
  MemoryReader(int threads, int64_t bytes);

  // Which of the two is faster differs between processors.
  enum class Ahead : uint8_t { kHardware, kAsked };
  // One piece.
  void Read(Ahead ahead);

  int64_t bytes() const { return parts_ * kPartBytes; }

 private:
  static constexpr int64_t kPartBytes = 16 << 10;

  kernels::cpu::ThreadPool pool_;
  const int64_t parts_;  // of a piece
  int64_t pieces_ = 0;
  int64_t piece_ = 0;  // the next one
  kernels::HostMemory memory_;
  volatile uint64_t keep_ = 0;
};

// Bytes per second that `threads` threads read together from memory, in
// pieces of `bytes`: what a kernel could stream a matrix of that size at.
double MeasureRead(int threads, int64_t bytes);

// 8-bit multiplications and additions per second of `threads` threads, with
// the instructions of `target`.
double MeasureInt8(int threads, kernels::cpu::CpuTarget target);

// FP32 multiplications and additions per second of `threads` threads, by fused
// multiply-adds in the widest registers that Highway takes (float kernels leave
// the choice to it).
double MeasureFma(int threads);

}  // namespace nibble::bench
