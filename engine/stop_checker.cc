#include "engine/stop_checker.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace nibble::engine {
namespace {

// border[i]: length of the longest proper prefix of `text` that ends at i
// (Knuth, Morris and Pratt, "Fast Pattern Matching in Strings", 1977).
std::vector<uint16_t> Borders(std::string_view text) {
  std::vector<uint16_t> border(text.size(), 0);
  for (size_t i = 1; i < text.size(); ++i) {
    size_t length = border[i - 1];
    while (length > 0 && text[i] != text[length]) length = border[length - 1];
    if (text[i] == text[length]) ++length;
    border[i] = static_cast<uint16_t>(length);
  }
  return border;
}

}  // namespace

StopChecker::StopChecker(std::span<const std::string> stops, bool include_stop)
    : include_stop_(include_stop) {
  automata_.reserve(stops.size());
  for (const std::string& stop : stops) {
    NIBBLE_CHECK(!stop.empty());
    NIBBLE_CHECK_LE(stop.size(), std::numeric_limits<uint16_t>::max());
    automata_.push_back({stop, Borders(stop), 0});
  }
}

StopChecker::Piece StopChecker::Append(std::string_view token_bytes,
                                       StopSearch search) {
  std::string text;
  detokenizer_.Append(token_bytes, text);
  return Search(text, search);
}

StopChecker::Piece StopChecker::Finish(StopSearch search) {
  std::string text;
  detokenizer_.Flush(text);
  Piece piece = Search(text, search);
  if (!piece.stop.has_value()) piece.text.append(std::exchange(held_, {}));
  return piece;
}

StopChecker::Piece StopChecker::Search(const std::string& text,
                                       StopSearch search) {
  const size_t old_size = held_.size();
  held_.append(text);
  if (search == StopSearch::kOff) return {std::exchange(held_, {}), {}};

  // A match begins inside held_: everything before it was shown because no
  // stop string could begin there any more.
  size_t begin = held_.size();
  size_t keep = 0;
  std::optional<size_t> found;
  for (size_t a = 0; a < automata_.size(); ++a) {
    Automaton& automaton = automata_[a];
    const std::string& stop = automaton.stop;
    size_t& matched = automaton.matched;
    for (size_t i = old_size; i < held_.size(); ++i) {
      while (matched > 0 && held_[i] != stop[matched]) {
        matched = automaton.border[matched - 1];
      }
      if (held_[i] == stop[matched]) ++matched;
      if (matched < stop.size()) continue;
      // The first end of one stop is also its first beginning.
      const size_t start = i + 1 - stop.size();
      const bool better =
          !found.has_value() || start < begin ||
          (start == begin && stop.size() > automata_[*found].stop.size());
      if (better) {
        begin = start;
        found = a;
      }
      break;
    }
    keep = std::max(keep, matched);
  }
  if (found.has_value()) {
    const size_t end =
        begin + (include_stop_ ? automata_[*found].stop.size() : 0);
    Piece piece{held_.substr(0, end), found};
    held_.clear();
    return piece;
  }
  Piece piece{held_.substr(0, held_.size() - keep), {}};
  held_.erase(0, held_.size() - keep);
  return piece;
}

}  // namespace nibble::engine
