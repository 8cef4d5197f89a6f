// UTF-8 by the Unicode Standard, chapter 3 (tables 3-6 and 3-7): what is well
// formed, and what a maximal bad subpart is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace nibble {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// What stands at the start of a byte string: a whole character, a bad
// subpart (to be shown as one U+FFFD), or the beginning of a character whose
// rest may still come.
struct Utf8Unit {
  enum Kind { kCharacter, kInvalid, kIncomplete } kind;
  size_t length;        // bytes it takes, >= 1
  uint32_t code_point;  // of a kCharacter; U+FFFD otherwise
};

// `bytes` must not be empty.
Utf8Unit NextUtf8(std::string_view bytes);

bool IsValidUtf8(std::string_view bytes);

// `bytes` with every maximal bad subpart (an unfinished end included) replaced
// by one U+FFFD.
std::string SanitizeUtf8(std::string_view bytes);

void AppendUtf8(std::string& out, uint32_t code_point);

// The number of bytes at the end of `bytes` that begin a character and do not
// finish it: 0 to 3.
size_t IncompleteUtf8Tail(std::string_view bytes);

}  // namespace nibble
