// Sampling on the CPU: the greedy choice in vectors, the rest by the rules of
// kernels/reference/sampling.h.
#pragma once

#include <span>

#include "kernels/reference/sampling.h"
#include "kernels/sampling.h"

namespace nibble::kernels::cpu {

// Chooses for one row of logits [V]; `sampler` is the calling thread's.
void SampleOne(std::span<const float> logits, const SampleRow& row,
               reference::Sampler* sampler, SampleResult* result);

}  // namespace nibble::kernels::cpu
