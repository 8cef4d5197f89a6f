#include "base/utf8.h"

#include <string>

#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(Utf8Test, ReplacesEachMaximalBadSubpartOnce) {
  // Unicode Standard 15, table 3-8 and 3-11.
  EXPECT_EQ(
      SanitizeUtf8("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
      "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
  EXPECT_EQ(SanitizeUtf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(SanitizeUtf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(SanitizeUtf8("a\xFF"
                         "b"),
            "a\uFFFDb");
  EXPECT_EQ(SanitizeUtf8("a\xF0\x9F\x98"), "a\uFFFD");
}

TEST(Utf8Test, EveryCodePointRoundTrips) {
  for (uint32_t code_point = 0; code_point <= 0x10FFFF; ++code_point) {
    if (code_point >= 0xD800 && code_point <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(text, code_point);
    const Utf8Unit unit = NextUtf8(text);
    ASSERT_EQ(unit.kind, Utf8Unit::kCharacter) << code_point;
    ASSERT_EQ(unit.length, text.size());
    ASSERT_EQ(unit.code_point, code_point);
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const std::string part = text.substr(0, cut);
      ASSERT_EQ(NextUtf8(part).kind, Utf8Unit::kIncomplete);
      ASSERT_EQ(IncompleteUtf8Tail("xy" + part), cut);
      ASSERT_FALSE(IsValidUtf8(part));
    }
    ASSERT_EQ(IncompleteUtf8Tail("x" + text), 0u);
  }
}

TEST(Utf8Test, TailOfInvalidBytesIsNotIncomplete) {
  EXPECT_EQ(IncompleteUtf8Tail(""), 0u);
  EXPECT_EQ(IncompleteUtf8Tail("\xFF"), 0u);
  EXPECT_EQ(IncompleteUtf8Tail("\x80\x80\x80"), 0u);
  EXPECT_EQ(IncompleteUtf8Tail("\xE0\x80"), 0u);  // overlong: already bad
  EXPECT_EQ(IncompleteUtf8Tail("\xF4\x90"), 0u);  // above U+10FFFF
}

}  // namespace
}  // namespace nibble
