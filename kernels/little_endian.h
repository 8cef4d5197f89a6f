// Unaligned little-endian loads from the bytes of a file.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace nibble::kernels {

static_assert(std::endian::native == std::endian::little,
              "the bytes of files are used as they are");

inline uint8_t Load8(const std::byte* p) {
  return std::to_integer<uint8_t>(*p);
}

inline uint16_t Load16(const std::byte* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return bits;
}

inline uint32_t Load32(const std::byte* p) {
  uint32_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return bits;
}

}  // namespace nibble::kernels
