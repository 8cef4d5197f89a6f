#include "scheduler/page_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace nibble::scheduler {
namespace {

using ::testing::Optional;
using Tokens = std::vector<int32_t>;

constexpr int32_t kPageSize = 2;

uint64_t ConstantHash(uint64_t, std::span<const int32_t>) { return 42; }

// Two pools: with the real hash and with one that always collides.
class PagePoolTest : public testing::TestWithParam<PagePool::HashFunction> {
 protected:
  PageKey Key(int32_t previous, const Tokens& tokens,
              int32_t prompt_tokens = kPageSize, uint64_t salt = 0) {
    return {.previous_page = previous,
            .tokens = tokens,
            .prompt_tokens = prompt_tokens,
            .salt = salt};
  }
  uint64_t Hash(uint64_t previous, const Tokens& tokens,
                int32_t prompt_tokens = kPageSize) {
    return pool_.ChainHash(previous, tokens, prompt_tokens);
  }
  uint64_t Start(uint64_t salt = 0) { return PagePool::ChainStart(salt); }

  PagePool pool_{4, kPageSize, GetParam()};
};

TEST_P(PagePoolTest, StartsEmptyAndGivesEachPageOnce) {
  EXPECT_EQ(pool_.total(), 4);
  EXPECT_EQ(pool_.empty(), 4);
  std::vector<int32_t> pages;
  for (int i = 0; i < 4; ++i) pages.push_back(pool_.Allocate().value());
  EXPECT_THAT(pages, testing::UnorderedElementsAre(0, 1, 2, 3));
  EXPECT_EQ(pool_.Allocate(), std::nullopt);
  EXPECT_EQ(pool_.used(), 4);
  EXPECT_EQ(pool_.available(), 0);
  pool_.Release(pages[2]);
  EXPECT_EQ(pool_.empty(), 1);
  EXPECT_THAT(pool_.Allocate(), Optional(pages[2]));
  pool_.CheckConsistency();
}

TEST_P(PagePoolTest, FindsOnlyEqualContents) {
  const Tokens a = {1, 2};
  const Tokens b = {1, 3};
  const int32_t page = pool_.Allocate().value();
  const int32_t other = pool_.Allocate().value();
  const uint64_t hash = Hash(Start(), a);
  ASSERT_EQ(pool_.Publish(page, hash, Key(-1, a)), page);
  ASSERT_EQ(pool_.Publish(other, Hash(Start(), b), Key(-1, b)), other);
  // The right hash with another key never hits.
  EXPECT_EQ(pool_.Find(hash, Key(-1, {1, 4})), std::nullopt);
  EXPECT_EQ(pool_.Find(hash, Key(other, a)), std::nullopt);
  EXPECT_EQ(pool_.Find(hash, Key(-1, a, 1)), std::nullopt);
  EXPECT_EQ(pool_.Find(hash, Key(-1, a, 0)), std::nullopt);
  EXPECT_EQ(pool_.Find(hash, Key(-1, a, kPageSize, 7)), std::nullopt);
  EXPECT_THAT(pool_.Find(hash, Key(-1, a)), Optional(page));
  EXPECT_EQ(pool_.count(page), 2);
  pool_.CheckConsistency();
}

TEST_P(PagePoolTest, SamePageAfterAnotherPrefixIsAnotherPage) {
  const Tokens a = {1, 2};
  const Tokens b = {3, 4};
  const Tokens tail = {5, 6};
  const int32_t after_a = pool_.Allocate().value();
  const int32_t after_b = pool_.Allocate().value();
  const int32_t tail_a = pool_.Allocate().value();
  const uint64_t hash_a = Hash(Start(), a);
  const uint64_t hash_b = Hash(Start(), b);
  pool_.Publish(after_a, hash_a, Key(-1, a));
  pool_.Publish(after_b, hash_b, Key(-1, b));
  pool_.Publish(tail_a, Hash(hash_a, tail), Key(after_a, tail));
  EXPECT_EQ(pool_.Find(Hash(hash_b, tail), Key(after_b, tail)), std::nullopt);
  EXPECT_THAT(pool_.Find(Hash(hash_a, tail), Key(after_a, tail)),
              Optional(tail_a));
  pool_.CheckConsistency();
}

TEST_P(PagePoolTest, ReleasedPublishedPageIsCachedAndComesBack) {
  const Tokens a = {1, 2};
  const int32_t page = pool_.Allocate().value();
  pool_.Publish(page, Hash(Start(), a), Key(-1, a));
  pool_.Release(page);
  EXPECT_EQ(pool_.cached(), 1);
  EXPECT_EQ(pool_.used(), 0);
  EXPECT_THAT(pool_.Find(Hash(Start(), a), Key(-1, a)), Optional(page));
  EXPECT_EQ(pool_.cached(), 0);
  EXPECT_EQ(pool_.used(), 1);
  pool_.CheckConsistency();
}

TEST_P(PagePoolTest, EvictsEmptyFirstThenLeastRecentlyUsed) {
  std::vector<int32_t> pages;
  for (int32_t i = 0; i < 3; ++i) {
    pages.push_back(pool_.Allocate().value());
    const Tokens tokens = {i, i};
    pool_.Publish(pages[i], Hash(Start(), tokens), Key(-1, tokens));
  }
  for (const int32_t page : pages) pool_.Release(page);
  // Page 0 becomes the most recently used.
  const Tokens zero = {0, 0};
  pool_.Release(pool_.Find(Hash(Start(), zero), Key(-1, zero)).value());
  EXPECT_EQ(pool_.empty(), 1);
  EXPECT_THAT(pool_.Allocate(), Optional(3));
  EXPECT_EQ(pool_.cached(), 3);
  EXPECT_THAT(pool_.Allocate(), Optional(pages[1]));
  EXPECT_THAT(pool_.Allocate(), Optional(pages[2]));
  EXPECT_EQ(pool_.cached(), 1);
  const Tokens one = {1, 1};
  EXPECT_EQ(pool_.Find(Hash(Start(), one), Key(-1, one)), std::nullopt);
  EXPECT_THAT(pool_.Find(Hash(Start(), zero), Key(-1, zero)),
              Optional(pages[0]));
  pool_.CheckConsistency();
}

TEST_P(PagePoolTest, PublishingAnEqualPageMovesTheReference) {
  const Tokens a = {1, 2};
  const int32_t first = pool_.Allocate().value();
  const int32_t second = pool_.Allocate().value();
  const uint64_t hash = Hash(Start(), a);
  pool_.Publish(first, hash, Key(-1, a));
  EXPECT_EQ(pool_.Publish(second, hash, Key(-1, a)), first);
  EXPECT_EQ(pool_.count(first), 2);
  EXPECT_EQ(pool_.count(second), 0);
  EXPECT_EQ(pool_.empty(), 3);
  pool_.Release(first);
  pool_.Release(first);
  // Also when the equal page is cached only.
  const int32_t third = pool_.Allocate().value();
  EXPECT_EQ(pool_.Publish(third, hash, Key(-1, a)), first);
  EXPECT_EQ(pool_.used(), 1);
  EXPECT_EQ(pool_.cached(), 0);
  pool_.CheckConsistency();
}

TEST_P(PagePoolTest, DiscardForgetsUnlessSomethingContinuesIt) {
  const Tokens a = {1, 2};
  const Tokens b = {3, 4};
  const uint64_t hash_a = Hash(Start(), a);
  const int32_t first = pool_.Allocate().value();
  const int32_t next = pool_.Allocate().value();
  pool_.Publish(first, hash_a, Key(-1, a));
  pool_.Publish(next, Hash(hash_a, b), Key(first, b));
  pool_.Release(next);
  pool_.Discard(first);
  EXPECT_EQ(pool_.cached(), 2);
  // Shared: only the reference goes.
  EXPECT_THAT(pool_.Find(hash_a, Key(-1, a)), Optional(first));
  EXPECT_THAT(pool_.Find(hash_a, Key(-1, a)), Optional(first));
  pool_.Discard(first);
  EXPECT_EQ(pool_.count(first), 1);
  EXPECT_THAT(pool_.Find(Hash(hash_a, b), Key(first, b)), Optional(next));
  pool_.Discard(next);
  pool_.Discard(first);
  EXPECT_EQ(pool_.empty(), 4);
  EXPECT_EQ(pool_.Find(hash_a, Key(-1, a)), std::nullopt);
  pool_.CheckConsistency();
}

TEST_P(PagePoolTest, DropCacheForgetsCachedPagesOnly) {
  const Tokens a = {1, 2};
  const Tokens b = {3, 4};
  const uint64_t hash_a = Hash(Start(), a);
  const int32_t first = pool_.Allocate().value();
  const int32_t next = pool_.Allocate().value();
  pool_.Publish(first, hash_a, Key(-1, a));
  pool_.Publish(next, Hash(hash_a, b), Key(first, b));
  pool_.Release(next);
  pool_.DropCache();
  EXPECT_EQ(pool_.cached(), 0);
  EXPECT_EQ(pool_.used(), 1);
  EXPECT_EQ(pool_.Find(Hash(hash_a, b), Key(first, b)), std::nullopt);
  EXPECT_THAT(pool_.Find(hash_a, Key(-1, a)), Optional(first));
  pool_.CheckConsistency();
}

TEST_P(PagePoolTest, MisuseIsCaught) {
  const Tokens a = {1, 2};
  const int32_t page = pool_.Allocate().value();
  const int32_t other = pool_.Allocate().value();
  EXPECT_DEATH(pool_.Release(3), "count");
  EXPECT_DEATH(pool_.Publish(page, 1, Key(other, a)), "published");
  EXPECT_DEATH(pool_.Publish(page, 1, Key(-1, {1})), "page_size");
  pool_.Publish(page, Hash(Start(), a), Key(-1, a));
  EXPECT_DEATH(pool_.Publish(page, 1, Key(-1, {8, 9})), "published");
}

INSTANTIATE_TEST_SUITE_P(Hashes, PagePoolTest,
                         testing::Values(&PagePool::DefaultHash,
                                         &ConstantHash));

TEST(PagePoolHashTest, DependsOnEverything) {
  PagePool pool(1, kPageSize, &PagePool::DefaultHash);
  const Tokens a = {1, 2};
  const Tokens b = {2, 1};
  const uint64_t start = PagePool::ChainStart(0);
  const uint64_t hash = pool.ChainHash(start, a, kPageSize);
  EXPECT_EQ(hash, pool.ChainHash(start, a, kPageSize));
  EXPECT_NE(hash, pool.ChainHash(start, b, kPageSize));
  EXPECT_NE(hash, pool.ChainHash(start, a, 1));
  EXPECT_NE(hash, pool.ChainHash(hash, a, kPageSize));
  EXPECT_NE(start, PagePool::ChainStart(1));
}

}  // namespace
}  // namespace nibble::scheduler
