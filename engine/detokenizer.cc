#include "engine/detokenizer.h"

#include "base/utf8.h"

namespace nibble::engine {

void Detokenizer::Append(std::string_view bytes, std::string& text) {
  pending_.append(bytes);
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Unit unit = NextUtf8(rest);
    if (unit.kind == Utf8Unit::kIncomplete) break;
    if (unit.kind == Utf8Unit::kCharacter) {
      text.append(rest.substr(0, unit.length));
    } else {
      text.append(kReplacementCharacter);
    }
    rest.remove_prefix(unit.length);
  }
  pending_.erase(0, pending_.size() - rest.size());
}

void Detokenizer::Flush(std::string& text) {
  if (!pending_.empty()) text.append(kReplacementCharacter);
  pending_.clear();
}

}  // namespace nibble::engine
