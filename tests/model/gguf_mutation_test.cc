// Damaged files by the thousand: truncated everywhere, every bit flipped,
// random edits. Whatever they are, reading them must not crash, nor read
// beyond the bytes (the sanitizer build watches).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/support/gguf_exercise.h"
#include "tests/support/gguf_writer.h"

namespace nibble::test {
namespace {

absl::Status Exercise(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  const std::vector<std::byte> exact(bytes.begin(), bytes.end());
  return ExerciseGguf(exact);
}

// Sound, with each kind of key and tensor the reader knows.
GgufWriter SoundFile() {
  SmallModel model;
  model.layers = 1;
  model.hidden_size = 32;
  model.feed_forward_size = 32;
  model.vocabulary = false;
  GgufWriter writer = WriteSmallModel(model);
  writer.Bool("a.bool", true)
      .Strings("some.strings", {"one", "two"})
      .Floats("some.floats", {1, 2});
  return writer;
}

TEST(GgufMutation, SeedsAreAsMeant) {
  const std::vector<std::string> seeds = GgufSeeds();
  ASSERT_GE(seeds.size(), 5u);
  EXPECT_FALSE(Exercise(seeds[0]).ok());  // no keys at all
  EXPECT_TRUE(Exercise(seeds[1]).ok()) << Exercise(seeds[1]);
  EXPECT_TRUE(Exercise(seeds[2]).ok()) << Exercise(seeds[2]);
  EXPECT_TRUE(Exercise(seeds[4]).ok()) << Exercise(seeds[4]);
}

TEST(GgufMutation, TruncatedAtEveryByte) {
  const std::string text = SoundFile().Build();
  ASSERT_TRUE(Exercise(text).ok()) << Exercise(text);
  for (size_t length = 0; length < text.size(); ++length) {
    const absl::Status status = Exercise(text.substr(0, length));
    ASSERT_FALSE(status.ok()) << "cut at byte " << length;
    ASSERT_EQ(status.message().substr(0, 9), "fuzz.gguf") << status;
  }
}

TEST(GgufMutation, EveryBitOfTheDirectoryFlipped) {
  std::string text = SoundFile().Build();
  const size_t directory_bytes = SoundFile().BuildDirectory().size();
  size_t refused = 0;
  for (size_t bit = 0; bit < directory_bytes * 8; ++bit) {
    const char before = text[bit / 8];
    text[bit / 8] = static_cast<char>(before ^ (1 << (bit % 8)));
    refused += Exercise(text).ok() ? 0 : 1;
    text[bit / 8] = before;
  }
  // Only what has no effect (letters of names nobody asks for, free numbers)
  // may pass.
  EXPECT_GT(refused, directory_bytes * 8 / 4);
}

TEST(GgufMutation, ExtremeNumbersEverywhere) {
  const std::string text = SoundFile().Build();
  const size_t directory_bytes = SoundFile().BuildDirectory().size();
  for (const uint64_t extreme :
       {uint64_t{0}, uint64_t{1} << 31, uint64_t{1} << 32, uint64_t{1} << 60,
        uint64_t{1} << 63, UINT64_MAX, UINT64_MAX - 31}) {
    for (size_t i = 0; i + 8 <= directory_bytes; ++i) {
      std::string damaged = text;
      std::memcpy(damaged.data() + i, &extreme, sizeof(extreme));
      Exercise(damaged).IgnoreError();
    }
  }
}

// The fuzzer's corpus under a few kinds of edits, the same on every run.
TEST(GgufMutation, RandomEditsOfTheCorpus) {
  const std::vector<std::string> seeds = GgufSeeds();
  std::mt19937_64 random(20240229);
  for (int round = 0; round < 4000; ++round) {
    std::string text = seeds[random() % seeds.size()];
    // Most of a file is data; the directory is at its start.
    const size_t reach = std::min<size_t>(text.size(), 2048);
    for (uint64_t edits = 1 + random() % 4; edits > 0; --edits) {
      const size_t at = random() % reach;
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.insert(at, 1 + random() % 16, static_cast<char>(random()));
          break;
        case 2:
          text.erase(at, 1 + random() % 16);
          break;
        default:  // a piece of another seed
          const std::string& other = seeds[random() % seeds.size()];
          text.insert(at,
                      other.substr(random() % other.size(), 1 + random() % 64));
      }
      text.resize(std::max(text.size(), reach), '\0');
    }
    Exercise(text).IgnoreError();
  }
}

}  // namespace
}  // namespace nibble::test
