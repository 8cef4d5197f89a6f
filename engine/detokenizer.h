// Token bytes to valid UTF-8, as they come.
#pragma once

#include <string>
#include <string_view>

namespace nibble::engine {

// Turns one output's bytes into characters; owned by its StopChecker, engine
// thread only. Every maximal bad subpart becomes one U+FFFD, so that all
// that was appended and flushed equals SanitizeUtf8 of the joined bytes.
class Detokenizer final {
 public:
  // Appends to `text` the characters that `bytes` complete. At most 3 bytes
  // stay behind: the beginning of a character.
  void Append(std::string_view bytes, std::string& text);
  // Ends the text: a character that was never finished becomes U+FFFD.
  void Flush(std::string& text);

  size_t pending_bytes() const { return pending_.size(); }

 private:
  std::string pending_;  // an unfinished character, 0 to 3 bytes
};

}  // namespace nibble::engine
