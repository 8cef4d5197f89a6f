// What a processor can do at best, measured.
#pragma once

#include <chrono>

#include "absl/functional/function_ref.h"
#include "kernels/cpu/target.h"

namespace nibble::bench {

// The least time of one call of `body` among those that fit `budget_seconds`
// (3 at least): other work on the machine only adds.
double BestSeconds(double budget_seconds, absl::FunctionRef<void()> body);

struct Peaks {
  double read_bytes_per_second = 0;  // of 512 MiB, by all threads
  double int8_per_second = 0;        // multiplications and additions
};

// `threads` at once, the dot products with the instructions of `target`.
Peaks MeasurePeaks(int threads, kernels::cpu::CpuTarget target);

}  // namespace nibble::bench
