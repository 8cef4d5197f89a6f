#include "kernels/sampling.h"

#include <array>
#include <cstdint>

#include "kernels/philox.h"

namespace nibble::kernels {

double UniformAt(uint64_t seed, uint64_t position) {
  const std::array<uint32_t, 4> words = Philox4x32(
      {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
       0, 0},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = static_cast<uint64_t>(words[1]) << 32 | words[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace nibble::kernels
