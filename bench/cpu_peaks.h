// What a processor can do at best, measured.
#pragma once

#include <chrono>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "kernels/cpu/target.h"

namespace nibble::bench {

// The least time of one call of `body` among those that fit `budget_seconds`
// (3 at least): other work on the machine only adds.
double BestSeconds(double budget_seconds, absl::FunctionRef<void()> body);

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
