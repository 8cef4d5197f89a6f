#include "engine/stop_checker.h"

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "gtest/gtest.h"

namespace nibble::engine {
namespace {

struct Outcome {
  std::string text;
  std::vector<std::string> chunks;
  std::optional<size_t> stop;
};

Outcome Feed(StopChecker& checker, const std::vector<std::string>& tokens) {
  Outcome outcome;
  const auto take = [&](StopChecker::Piece piece) {
    outcome.text += piece.text;
    outcome.chunks.push_back(std::move(piece.text));
    outcome.stop = piece.stop;
    return piece.stop.has_value();
  };
  for (const std::string& token : tokens) {
    if (take(checker.Append(token, StopSearch::kOn))) return outcome;
  }
  take(checker.Finish(StopSearch::kOn));
  return outcome;
}

Outcome Feed(const std::vector<std::string>& stops,
             const std::vector<std::string>& tokens, bool include = false) {
  StopChecker checker(stops, include);
  return Feed(checker, tokens);
}

TEST(StopChecker, JoinsCharactersSplitOverTokens) {
  const Outcome outcome = Feed({}, {"\xF0", "\x9F", "\x98", "\x80", "a"});
  EXPECT_EQ(outcome.chunks,
            (std::vector<std::string>{"", "", "", "😀", "a", ""}));
}

TEST(StopChecker, ReplacesEachMaximalBadSubpartOnce) {
  EXPECT_EQ(Feed({}, {"a", "\xFF", "b"}).text, "a\uFFFDb");
  EXPECT_EQ(Feed({}, {"\xF0\x9F", "\x98", "b"}).text, "\uFFFDb");
  EXPECT_EQ(Feed({}, {"\xC0", "\xAF"}).text, "\uFFFD\uFFFD");
  EXPECT_EQ(Feed({}, {"a\xE2\x82"}).text, "a\uFFFD");
}

TEST(StopChecker, CutsInsideAToken) {
  EXPECT_EQ(Feed({"Pari"}, {" Paris."}).text, " ");
  EXPECT_EQ(Feed({"\n"}, {"a", "\n\n"}).text, "a");
}

TEST(StopChecker, MatchesOverSeveralTokens) {
  const Outcome outcome = Feed({" O P Q"}, {" O", " P", " Q", " R"});
  EXPECT_EQ(outcome.text, "");
  EXPECT_EQ(outcome.stop, 0u);
  EXPECT_EQ(Feed({" O P Q"}, {" O", " P", " Q", " R"}, true).text, " O P Q");
}

TEST(StopChecker, ShowsWhatOnlyLookedLikeAStop) {
  const Outcome outcome = Feed({"END"}, {"xE", "N", "x"});
  EXPECT_EQ(outcome.chunks, (std::vector<std::string>{"x", "", "ENx", ""}));
  EXPECT_FALSE(outcome.stop.has_value());
}

TEST(StopChecker, TakesTheEarliestThenTheLongest) {
  const Outcome earliest = Feed({"bc", "abc"}, {"xabc"});
  EXPECT_EQ(earliest.text, "x");
  EXPECT_EQ(earliest.stop, 1u);
  const Outcome longest = Feed({"ab", "abc", "b"}, {"xabcd"}, true);
  EXPECT_EQ(longest.text, "xabc");
  EXPECT_EQ(longest.stop, 1u);
}

TEST(StopChecker, FindsARepetitiveStopThatOverlapsItself) {
  EXPECT_EQ(Feed({"aab"}, {"a", "a", "a", "b"}).text, "a");
  EXPECT_EQ(Feed({"abab"}, {"ab", "a", "abab"}).text, "aba");
}

TEST(StopChecker, MatchesTheReplacementOfAnUnfinishedCharacter) {
  const Outcome outcome = Feed({"b\uFFFD"}, {"ab", "\xF0\x9F"});
  EXPECT_EQ(outcome.text, "a");
  EXPECT_EQ(outcome.stop, 0u);
}

TEST(StopChecker, PassesByTextThatIsNotSearched) {
  const std::vector<std::string> stops = {"ab"};
  StopChecker checker(stops, false);
  EXPECT_EQ(checker.Append("xab", StopSearch::kOff).text, "xab");
  EXPECT_EQ(checker.Append("a", StopSearch::kOff).text, "a");
  // No match begins in text that was passed by.
  EXPECT_EQ(checker.Append("b", StopSearch::kOn).text, "b");
  EXPECT_EQ(checker.Append("ya", StopSearch::kOn).text, "y");
  EXPECT_TRUE(checker.Append("b", StopSearch::kOn).stop.has_value());
}

// The rule read off the whole text, with nothing incremental in it.
struct Oracle {
  std::string text;
  std::optional<size_t> stop;
};

void CutAtStop(const std::vector<std::string>& stops, bool include,
               Oracle& oracle) {
  size_t begin = std::string::npos;
  for (size_t s = 0; s < stops.size(); ++s) {
    const size_t at = oracle.text.find(stops[s]);
    if (at == std::string::npos) continue;
    const bool better =
        !oracle.stop.has_value() || at < begin ||
        (at == begin && stops[s].size() > stops[*oracle.stop].size());
    if (better) {
      begin = at;
      oracle.stop = s;
    }
  }
  if (oracle.stop.has_value()) {
    oracle.text.resize(begin + (include ? stops[*oracle.stop].size() : 0));
  }
}

Oracle WholeText(const std::vector<std::string>& stops, bool include,
                 const std::vector<std::string>& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) {
    bytes += token;
    const size_t tail = IncompleteUtf8Tail(bytes);
    Oracle oracle{SanitizeUtf8(bytes.substr(0, bytes.size() - tail)), {}};
    CutAtStop(stops, include, oracle);
    if (oracle.stop.has_value()) return oracle;
  }
  Oracle oracle{SanitizeUtf8(bytes), {}};
  CutAtStop(stops, include, oracle);
  return oracle;
}

// Few different units, so that stops are hit, overlap and almost hit.
const std::vector<std::string>& Units() {
  static const std::vector<std::string> units = {
      "a",        "b",    "ab",   "aba",  "é",        "😀",     "\xF0\x9F",
      "\x98\x80", "\xC3", "\xA9", "\xFF", "\xE2\x82", "\uFFFD"};
  return units;
}

std::string RandomStop(std::mt19937& random) {
  static const std::vector<std::string> parts = {"a", "b",      "é",
                                                 "😀", "\uFFFD", "ab"};
  std::string stop;
  const size_t count = 1 + random() % 4;
  for (size_t i = 0; i < count; ++i) stop += parts[random() % parts.size()];
  return stop;
}

TEST(StopChecker, AgreesWithTheWholeTextOnRandomStreams) {
  std::mt19937 random(20240607);
  int stopped = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops;
    for (size_t i = random() % 4; i > 0; --i) {
      stops.push_back(RandomStop(random));
    }
    std::vector<std::string> tokens;
    for (size_t i = random() % 20; i > 0; --i) {
      std::string token;
      for (size_t j = random() % 4; j > 0; --j) {
        token += Units()[random() % Units().size()];
      }
      tokens.push_back(token);
    }
    const bool include = random() % 2 == 0;
    const Oracle oracle = WholeText(stops, include, tokens);
    const Outcome outcome = Feed(stops, tokens, include);
    ASSERT_EQ(outcome.text, oracle.text) << "round " << round;
    ASSERT_EQ(outcome.stop.has_value(), oracle.stop.has_value());
    if (oracle.stop.has_value()) {
      // Two equal stop strings are one: the spelling counts.
      ASSERT_EQ(stops[*outcome.stop], stops[*oracle.stop]);
      ++stopped;
    }
    for (const std::string& chunk : outcome.chunks) {
      ASSERT_TRUE(IsValidUtf8(chunk));
    }
  }
  EXPECT_GT(stopped, 5000);
}

TEST(StopChecker, NeverHoldsBackMoreThanTheLongestStopLessOnePlusThree) {
  std::mt19937 random(7);
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops;
    size_t longest = 1;
    for (size_t i = random() % 4; i > 0; --i) {
      stops.push_back(RandomStop(random));
      longest = std::max(longest, stops.back().size());
    }
    StopChecker checker(stops, false);
    std::string bytes;
    std::string shown;
    for (int i = 0; i < 30; ++i) {
      const std::string& token = Units()[random() % Units().size()];
      bytes += token;
      const StopChecker::Piece piece = checker.Append(token, StopSearch::kOn);
      shown += piece.text;
      if (piece.stop.has_value()) break;
      const std::string whole = SanitizeUtf8(
          bytes.substr(0, bytes.size() - IncompleteUtf8Tail(bytes)));
      ASSERT_TRUE(whole.starts_with(shown));
      ASSERT_LE(whole.size() - shown.size(), longest - 1);
      ASSERT_LE(checker.held_bytes(), longest - 1 + 3);
      // What was shown cannot be a part of a later match.
      for (const std::string& stop : stops) {
        ASSERT_EQ(shown.find(stop), std::string::npos);
      }
    }
  }
}

}  // namespace
}  // namespace nibble::engine
