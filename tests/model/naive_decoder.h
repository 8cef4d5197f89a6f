// A decoder written as the papers describe it, one token after the other, in
// double precision: what Model is tested against.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/checkpoint.h"

namespace nibble::test {

// The logits [tokens.size()][vocab] after each token. Reads the checkpoint's
// tensors and counts; rotary angles come from `rope_base` alone.
std::vector<std::vector<double>> NaiveLogits(
    const model::Checkpoint& checkpoint, double rope_base,
    std::span<const int32_t> tokens);

}  // namespace nibble::test
