// The alphabet of byte-level BPE vocabularies (GPT-2, Radford et al. 2019):
// each byte is spelled as one printable character.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/utf8.h"

namespace nibble::model {

// Bytes that print in Latin-1 stand for themselves; the other 68 follow, in
// order, as U+0100, U+0101, ... (so a space is "Ġ" and a newline "Ċ").
constexpr bool IsPrintableLatin1(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
         byte >= 0xAE;
}

inline constexpr int kByteAlphabetEnd = 0x100 + 68;  // code points

inline constexpr std::array<int16_t, kByteAlphabetEnd> kByteOfCharacter = [] {
  std::array<int16_t, kByteAlphabetEnd> bytes{};
  bytes.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    bytes[IsPrintableLatin1(byte) ? byte : next++] = static_cast<int16_t>(byte);
  }
  return bytes;
}();

// The bytes that `spelling` stands for; nothing when a character is outside
// the alphabet.
inline std::optional<std::string> BytesOfSpelling(std::string_view spelling) {
  std::string bytes;
  while (!spelling.empty()) {
    const Utf8Unit unit = NextUtf8(spelling);
    if (unit.kind != Utf8Unit::kCharacter ||
        unit.code_point >= kByteAlphabetEnd ||
        kByteOfCharacter[unit.code_point] < 0) {
      return std::nullopt;
    }
    bytes += static_cast<char>(kByteOfCharacter[unit.code_point]);
    spelling.remove_prefix(unit.length);
  }
  return bytes;
}

}  // namespace nibble::model
