// Random data from a seed, the same on every machine and standard library.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <random>
#include <vector>

namespace nibble::test {

// A seeded generator. Owned by a test, used by one thread.
class Random final {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  uint64_t Bits() { return engine_(); }

  // In [0, 1).
  double Uniform() { return static_cast<double>(Bits() >> 11) * 0x1p-53; }

  float Uniform(float low, float high) {
    return low + static_cast<float>(Uniform()) * (high - low);
  }

  // In [low, high].
  int64_t Int(int64_t low, int64_t high) {
    const auto span = static_cast<uint64_t>(high - low) + 1;
    return low + static_cast<int64_t>(Bits() % span);
  }

  // Mean 0, standard deviation 1 (Box and Muller, 1958).
  float Normal() {
    const double radius = std::sqrt(-2 * std::log(1 - Uniform()));
    return static_cast<float>(radius *
                              std::cos(2 * std::numbers::pi * Uniform()));
  }

  std::vector<float> Normals(int64_t count, float deviation = 1.0f) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = Normal() * deviation;
    return values;
  }

  std::vector<std::byte> Bytes(int64_t count) {
    std::vector<std::byte> bytes(static_cast<size_t>(count));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(Bits());
    return bytes;
  }

 private:
  std::mt19937_64 engine_;  // its sequence is fixed by the C++ standard
};

}  // namespace nibble::test
