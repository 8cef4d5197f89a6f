#include "scheduler/page_pool.h"

#include <algorithm>

#include "absl/hash/hash.h"
#include "absl/types/span.h"
#include "base/check.h"

namespace nibble::scheduler {

uint64_t PagePool::DefaultHash(uint64_t previous,
                               std::span<const int32_t> tokens) {
  return absl::HashOf(previous,
                      absl::MakeConstSpan(tokens.data(), tokens.size()));
}

PagePool::PagePool(int32_t total_pages, int32_t page_size, HashFunction hash)
    : total_(total_pages), page_size_(page_size), hash_(hash) {
  NIBBLE_CHECK_GE(total_pages, 1);
  NIBBLE_CHECK_GE(page_size, 1);
  NIBBLE_CHECK(hash != nullptr);
  pages_.resize(total_pages);
  tokens_.resize(static_cast<size_t>(total_pages) * page_size);
  for (int32_t page = 0; page < total_pages; ++page) LinkLast(page);
}

uint64_t PagePool::ChainStart(uint64_t salt) { return absl::HashOf(salt); }

uint64_t PagePool::ChainHash(uint64_t previous, std::span<const int32_t> tokens,
                             int32_t prompt_tokens) const {
  // Mixed in before the hash function, so that a test's constant function
  // makes everything collide.
  return hash_(absl::HashOf(previous, prompt_tokens), tokens);
}

std::span<int32_t> PagePool::TokensOf(int32_t page) {
  return {tokens_.data() + static_cast<size_t>(page) * page_size_,
          static_cast<size_t>(page_size_)};
}

std::span<const int32_t> PagePool::TokensOf(int32_t page) const {
  return {tokens_.data() + static_cast<size_t>(page) * page_size_,
          static_cast<size_t>(page_size_)};
}

std::optional<int32_t> PagePool::Allocate() {
  const int32_t page = first_free_;
  if (page == kNone) return std::nullopt;
  if (pages_[page].published) Unpublish(page);
  AddReference(page);
  return page;
}

int32_t PagePool::Lookup(uint64_t hash, const PageKey& key) const {
  const auto found = by_hash_.find(hash);
  if (found == by_hash_.end()) return kNone;
  for (int32_t page = found->second; page != kNone;
       page = pages_[page].same_hash) {
    const Page& entry = pages_[page];
    if (entry.previous_page == key.previous_page && entry.salt == key.salt &&
        entry.prompt_tokens == key.prompt_tokens &&
        std::ranges::equal(TokensOf(page), key.tokens)) {
      return page;
    }
  }
  return kNone;
}

std::optional<int32_t> PagePool::Find(uint64_t hash, const PageKey& key) {
  const int32_t page = Lookup(hash, key);
  if (page == kNone) return std::nullopt;
  AddReference(page);
  return page;
}

int32_t PagePool::Publish(int32_t page, uint64_t hash, const PageKey& key) {
  Page& entry = pages_[page];
  NIBBLE_CHECK_EQ(static_cast<int32_t>(key.tokens.size()), page_size_);
  NIBBLE_CHECK_GT(entry.count, 0);
  NIBBLE_CHECK(!entry.published);
  const int32_t equal = Lookup(hash, key);
  if (equal != kNone) {
    AddReference(equal);
    Release(page);
    return equal;
  }
  if (key.previous_page != kNone) {
    NIBBLE_CHECK(pages_[key.previous_page].published);
    ++pages_[key.previous_page].continuations;
  }
  entry.published = true;
  entry.hash = hash;
  entry.salt = key.salt;
  entry.previous_page = key.previous_page;
  entry.prompt_tokens = key.prompt_tokens;
  std::ranges::copy(key.tokens, TokensOf(page).begin());
  const auto [slot, inserted] = by_hash_.try_emplace(hash, page);
  entry.same_hash = inserted ? kNone : slot->second;
  slot->second = page;
  return page;
}

void PagePool::Unpublish(int32_t page) {
  Page& entry = pages_[page];
  NIBBLE_CHECK_EQ(entry.count, 0);
  NIBBLE_CHECK_EQ(entry.continuations, 0);
  const auto slot = by_hash_.find(entry.hash);
  NIBBLE_CHECK(slot != by_hash_.end());
  if (slot->second == page) {
    if (entry.same_hash == kNone) {
      by_hash_.erase(slot);
    } else {
      slot->second = entry.same_hash;
    }
  } else {
    int32_t other = slot->second;
    while (pages_[other].same_hash != page) other = pages_[other].same_hash;
    pages_[other].same_hash = entry.same_hash;
  }
  if (entry.previous_page != kNone) {
    --pages_[entry.previous_page].continuations;
  }
  entry.published = false;
  --cached_;
}

void PagePool::AddReference(int32_t page) {
  Page& entry = pages_[page];
  if (entry.count++ > 0) return;
  Unlink(page);
  if (entry.published) --cached_;
  ++used_;
}

void PagePool::Release(int32_t page) {
  Page& entry = pages_[page];
  NIBBLE_CHECK_GT(entry.count, 0);
  if (--entry.count > 0) return;
  --used_;
  if (entry.published) {
    ++cached_;
    LinkLast(page);
  } else {
    LinkFirst(page);
  }
}

void PagePool::Discard(int32_t page) {
  Release(page);
  const Page& entry = pages_[page];
  if (entry.count > 0 || !entry.published || entry.continuations > 0) return;
  Unpublish(page);
  Unlink(page);
  LinkFirst(page);
}

void PagePool::DropCache() {
  // In LRU order a page comes before the one it continues.
  int32_t page = first_free_;
  while (page != kNone) {
    if (pages_[page].published) Unpublish(page);
    page = pages_[page].after;
  }
}

void PagePool::LinkFirst(int32_t page) {
  pages_[page].before = kNone;
  pages_[page].after = first_free_;
  (first_free_ == kNone ? last_free_ : pages_[first_free_].before) = page;
  first_free_ = page;
}

void PagePool::LinkLast(int32_t page) {
  pages_[page].after = kNone;
  pages_[page].before = last_free_;
  (last_free_ == kNone ? first_free_ : pages_[last_free_].after) = page;
  last_free_ = page;
}

void PagePool::Unlink(int32_t page) {
  const Page& entry = pages_[page];
  (entry.before == kNone ? first_free_ : pages_[entry.before].after) =
      entry.after;
  (entry.after == kNone ? last_free_ : pages_[entry.after].before) =
      entry.before;
}

// Returns each page's place in the free list, -1 for pages in use.
std::vector<int32_t> PagePool::CheckFreeList() const {
  std::vector<int32_t> place(total_, kNone);
  int32_t length = 0;
  int32_t published = 0;
  int32_t before = kNone;
  for (int32_t page = first_free_; page != kNone; page = pages_[page].after) {
    NIBBLE_CHECK_EQ(pages_[page].count, 0);
    NIBBLE_CHECK_EQ(pages_[page].before, before);
    NIBBLE_CHECK_EQ(place[page], kNone);
    // Empty pages come first.
    NIBBLE_CHECK(pages_[page].published || published == 0);
    published += pages_[page].published ? 1 : 0;
    place[page] = length++;
    before = page;
  }
  NIBBLE_CHECK_EQ(last_free_, before);
  NIBBLE_CHECK_EQ(length, total_ - used_);
  NIBBLE_CHECK_EQ(published, cached_);
  return place;
}

void PagePool::CheckPublished(const std::vector<int32_t>& place) const {
  std::vector<int32_t> continuations(total_, 0);
  int32_t published = 0;
  for (int32_t page = 0; page < total_; ++page) {
    const Page& entry = pages_[page];
    if (!entry.published) continue;
    ++published;
    const int32_t previous = entry.previous_page;
    if (previous == kNone) continue;
    NIBBLE_CHECK(pages_[previous].published);
    ++continuations[previous];
    // It is in use, or will be evicted later than this page.
    NIBBLE_CHECK(pages_[previous].count > 0 ||
                 (entry.count == 0 && place[previous] > place[page]));
  }
  int32_t listed = 0;
  for (const auto& [hash, first] : by_hash_) {
    for (int32_t page = first; page != kNone; page = pages_[page].same_hash) {
      NIBBLE_CHECK(pages_[page].published);
      NIBBLE_CHECK_EQ(pages_[page].hash, hash);
      ++listed;
      NIBBLE_CHECK_LE(listed, published);
    }
  }
  NIBBLE_CHECK_EQ(listed, published);
  for (int32_t page = 0; page < total_; ++page) {
    if (!pages_[page].published) continue;
    NIBBLE_CHECK_EQ(pages_[page].continuations, continuations[page]);
  }
}

void PagePool::CheckConsistency() const {
  int32_t in_use = 0;
  for (const Page& page : pages_) {
    NIBBLE_CHECK_GE(page.count, 0);
    in_use += page.count > 0 ? 1 : 0;
  }
  NIBBLE_CHECK_EQ(in_use, used_);
  NIBBLE_CHECK_GE(empty(), 0);
  NIBBLE_CHECK_EQ(used() + cached() + empty(), total());
  CheckPublished(CheckFreeList());
}

}  // namespace nibble::scheduler
