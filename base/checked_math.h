// Integer arithmetic that notices overflow, for sizes that come from a file or
// a request.
#pragma once

#include <concepts>
#include <optional>

namespace nibble {

// a * b, or nothing when the product does not fit T.
template <std::integral T>
[[nodiscard]] constexpr std::optional<T> CheckedMul(T a, T b) {
  T result;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

// a + b, or nothing when the sum does not fit T.
template <std::integral T>
[[nodiscard]] constexpr std::optional<T> CheckedAdd(T a, T b) {
  T result;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

// The least multiple of `multiple` that is at least `a`; `multiple` > 0.
template <std::integral T>
[[nodiscard]] constexpr std::optional<T> CheckedRoundUp(T a, T multiple) {
  const T rest = a % multiple;
  return rest == 0 ? std::optional<T>(a) : CheckedAdd<T>(a, multiple - rest);
}

// ceil(a / b) for a >= 0, b > 0.
template <std::integral T>
[[nodiscard]] constexpr T DivideUp(T a, T b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

template <std::integral T>
[[nodiscard]] constexpr T RoundUp(T a, T multiple) {
  return DivideUp(a, multiple) * multiple;
}

}  // namespace nibble
