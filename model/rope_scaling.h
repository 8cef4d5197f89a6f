// Rotary frequencies with the scaling a checkpoint asks for.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace nibble::model {

enum class RopeScaling : uint8_t { kNone, kLinear, kYarn };

// What a checkpoint says about its rotary embedding. Plain values, checked by
// the reader.
struct RopeSpec {
  int32_t rotary_dims = 0;  // even, of each head
  double frequency_base = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;  // context extension, kLinear and kYarn
  double attention_factor = 1.0;
  int32_t original_context = 0;  // tokens, kYarn
  // YaRN's alpha and beta: rotations over the original context below which a
  // dimension is interpolated, above which it is left alone.
  double beta_slow = 1.0;
  double beta_fast = 32.0;
  // Llama 3.1's divisors of each frequency [rotary_dims / 2], or empty.
  std::vector<float> frequency_divisors = {};
};

// All but the pairing, which is the architecture's.
kernels::RopeParams MakeRope(const RopeSpec& spec);

}  // namespace nibble::model
