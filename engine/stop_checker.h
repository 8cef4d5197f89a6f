// The text of one output: what may be shown, and where a stop string ends it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/detokenizer.h"

namespace nibble::engine {

// Whether the text of some token takes part in stop matching.
enum class StopSearch : uint8_t { kOff, kOn };

// Owned by one output, engine thread only.
//
// After each token the text so far is searched. Of the stop strings in it the
// one that begins first wins, of those the longest; the text ends where it
// begins (or behind it, with include_stop). Text whose search is off is
// passed by: no match begins in it. Without a match, what is held back is the
// longest end of the text that begins some stop string, and the bytes of an
// unfinished character: at most the longest stop minus one byte, plus 3.
//
// Each stop string is followed by its own Knuth-Morris-Pratt automaton, so a
// byte costs O(number of stops), whatever the text.
class StopChecker final {
 public:
  // Valid UTF-8, none empty.
  StopChecker(std::span<const std::string> stops, bool include_stop);

  struct Piece {
    std::string text;  // to be shown now, valid UTF-8
    // The stop string that ended the text (index into `stops`).
    std::optional<size_t> stop;
  };

  // Takes the bytes of the next token. Not after a piece with a `stop`.
  Piece Append(std::string_view token_bytes, StopSearch search);
  // Ends the text without another token: everything held back is shown. The
  // U+FFFD of an unfinished character may still complete a stop string.
  Piece Finish(StopSearch search);

  // Bytes not shown yet.
  size_t held_bytes() const {
    return held_.size() + detokenizer_.pending_bytes();
  }

 private:
  // A stop string and how much of it the text ends with.
  struct Automaton {
    std::string stop;
    std::vector<uint16_t> border;  // [size]: longest proper border of a prefix
    size_t matched = 0;
  };

  Piece Search(const std::string& text, StopSearch search);

  bool include_stop_;
  std::vector<Automaton> automata_;
  Detokenizer detokenizer_;
  std::string held_;  // text that may be the beginning of a stop
};

}  // namespace nibble::engine
