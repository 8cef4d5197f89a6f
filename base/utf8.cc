#include "base/utf8.h"

#include "base/check.h"

namespace nibble {

Utf8Unit NextUtf8(std::string_view bytes) {
  NIBBLE_DCHECK(!bytes.empty());
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) return {Utf8Unit::kCharacter, 1, lead};
  constexpr uint32_t kBad = 0xFFFD;
  size_t need;
  // Bounds of the second byte: they exclude overlong forms, surrogates and
  // what lies above U+10FFFF.
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  uint32_t code_point;
  if (lead >= 0xC2 && lead <= 0xDF) {
    need = 2;
    code_point = lead & 0x1F;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    need = 3;
    code_point = lead & 0x0F;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    need = 4;
    code_point = lead & 0x07;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Utf8Unit::kInvalid, 1, kBad};
  }
  for (size_t i = 1; i < need; ++i) {
    if (i == bytes.size()) return {Utf8Unit::kIncomplete, i, kBad};
    if (at(i) < low || at(i) > high) return {Utf8Unit::kInvalid, i, kBad};
    code_point = code_point << 6 | (at(i) & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Unit::kCharacter, need, code_point};
}

bool IsValidUtf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const Utf8Unit unit = NextUtf8(bytes);
    if (unit.kind != Utf8Unit::kCharacter) return false;
    bytes.remove_prefix(unit.length);
  }
  return true;
}

std::string SanitizeUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Unit unit = NextUtf8(bytes);
    if (unit.kind == Utf8Unit::kCharacter) {
      out.append(bytes.substr(0, unit.length));
    } else {
      out.append(kReplacementCharacter);
    }
    bytes.remove_prefix(unit.length);
  }
  return out;
}

void AppendUtf8(std::string& out, uint32_t code_point) {
  const auto put = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

size_t IncompleteUtf8Tail(std::string_view bytes) {
  for (size_t tail = 1; tail <= 3 && tail <= bytes.size(); ++tail) {
    const Utf8Unit unit = NextUtf8(bytes.substr(bytes.size() - tail));
    if (unit.kind == Utf8Unit::kIncomplete) return tail;
    // A lead byte whose character is whole or broken ends the search; a
    // continuation byte (kInvalid of length 1) may belong to a lead before it.
    if (unit.kind == Utf8Unit::kCharacter || unit.length > 1) return 0;
  }
  return 0;
}

}  // namespace nibble
