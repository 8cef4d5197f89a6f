// The exponential of softmax weights, made of single FP32 operations: the
// same bits on every machine, in loops that a compiler can vectorise.
#pragma once

#include <bit>
#include <cstdint>

namespace nibble::kernels::reference {

// Below this the result is 0; its exponential is just above the least normal
// FP32 number, so that no result is subnormal.
inline constexpr float kExpFloor = -87.0f;

// e^x for x <= 0 (-infinity included) with a relative error below 2e-7;
// exactly 1 at 0. Files that use it are compiled with -ffp-contract=off.
inline float ExpNonPositive(float x) {
  constexpr float kLog2E = 1.44269504f;
  // ln 2 in two parts; the first has 15 bits, so n * kLn2High is exact.
  constexpr float kLn2High = 0.693145752f;
  constexpr float kLn2Low = 1.42860677e-6f;
  // Adding and subtracting 1.5 * 2^23 rounds to an integer.
  constexpr float kRound = 12582912.0f;
  const float clamped = x < kExpFloor ? kExpFloor : x;
  const float n = (clamped * kLog2E + kRound) - kRound;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  // Taylor's series: |r| <= ln(2) / 2, the next term is 5e-9 at most.
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const uint32_t exponent = static_cast<uint32_t>(static_cast<int32_t>(n) + 127)
                            << 23;
  const float result = p * std::bit_cast<float>(exponent);
  return x < kExpFloor ? 0.0f : result;
}

}  // namespace nibble::kernels::reference
