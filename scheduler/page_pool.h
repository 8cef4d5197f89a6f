// Who owns which page of the KV cache, and which pages can be used again.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace nibble::scheduler {

// What a full page holds, all of it: two pages with equal keys have the same
// keys and values. The prefix is named by the page that ends it, so equality
// of one page is, by induction, equality of the whole prefix.
struct PageKey {
  int32_t previous_page = -1;       // the prefix's last page; -1: no prefix
  std::span<const int32_t> tokens;  // [page_size]
  // How many of the tokens, counted from the first, were computed as prompt;
  // the others were computed as generated tokens. Under stable numerics the
  // two run on different kernels, so a prompt may hit only pages with
  // page_size prompt tokens, and a page with both kinds is equal only to one
  // with the same boundary. Where the kernels do not differ: page_size always.
  int32_t prompt_tokens = 0;
  uint64_t salt = 0;
};

// Page ids, reference counts and prefix hashes. Owned by the Scheduler, engine
// thread only; knows ids, not bytes.
//
// A page is in use (count > 0), cached (count 0, its contents still findable)
// or empty. The free list is in LRU order, empty pages first, so it doubles as
// the prefix cache: an allocation takes the page that was least lately useful.
// used() + cached() + empty() == total() always.
//
// An owner holds the pages of its prefix in order and gives them back from the
// last to the first. So a page leaves the cache only after every page that
// continues it, a findable page can always be reached, and `previous_page`
// never names a page that was taken for something else (checked).
class PagePool final {
 public:
  // Maps (previous hash, tokens of the page) to a hash; a test may force
  // collisions. Never trusted alone: tokens are compared.
  using HashFunction = uint64_t (*)(uint64_t previous,
                                    std::span<const int32_t> tokens);
  // Seeded per process, so that nobody can prepare prompts that collide.
  static uint64_t DefaultHash(uint64_t previous,
                              std::span<const int32_t> tokens);

  PagePool(int32_t total_pages, int32_t page_size, HashFunction hash);

  int32_t page_size() const { return page_size_; }
  int32_t total() const { return total_; }
  int32_t used() const { return used_; }
  int32_t cached() const { return cached_; }
  int32_t empty() const { return total_ - used_ - cached_; }
  // Pages an Allocate can still give.
  int32_t available() const { return total_ - used_; }
  // How many references the page has.
  int32_t count(int32_t page) const { return pages_[page].count; }

  // The first hash of a chain.
  static uint64_t ChainStart(uint64_t salt);
  uint64_t ChainHash(uint64_t previous, std::span<const int32_t> tokens,
                     int32_t prompt_tokens) const;

  // A page with count 1 and undefined contents, or nothing when none is left.
  std::optional<int32_t> Allocate();

  // The page that holds exactly this; takes a reference. The caller holds
  // `previous_page`.
  std::optional<int32_t> Find(uint64_t hash, const PageKey& key);

  // Makes a full page findable and returns it. If an equal page is findable
  // already, the caller's reference moves to that one, which is returned, and
  // `page` becomes empty: one copy of a prefix stays. The caller holds
  // `previous_page`, which is findable itself.
  int32_t Publish(int32_t page, uint64_t hash, const PageKey& key);

  // Gives one reference back; at count 0 a published page becomes cached
  // (most recently used), another one empty.
  void Release(int32_t page);

  // Gives one reference back; at count 0 the page becomes empty, unless a
  // findable page continues it: then it is cached as by Release.
  void Discard(int32_t page);

  // Forgets every cached page.
  void DropCache();

  // Checks every invariant; for tests. CHECK-fails with what is wrong.
  void CheckConsistency() const;

 private:
  static constexpr int32_t kNone = -1;

  // One page's bookkeeping; its tokens are in tokens_.
  struct Page {
    int32_t count = 0;
    bool published = false;
    // The free list, while count is 0.
    int32_t before = kNone;
    int32_t after = kNone;
    // While published:
    uint64_t hash = 0;
    uint64_t salt = 0;
    int32_t previous_page = kNone;
    int32_t prompt_tokens = 0;
    int32_t continuations = 0;  // published pages whose previous is this one
    int32_t same_hash = kNone;  // next published page with this hash
  };

  std::span<int32_t> TokensOf(int32_t page);
  std::span<const int32_t> TokensOf(int32_t page) const;
  int32_t Lookup(uint64_t hash, const PageKey& key) const;
  void AddReference(int32_t page);
  void Unpublish(int32_t page);
  void LinkFirst(int32_t page);
  void LinkLast(int32_t page);
  void Unlink(int32_t page);
  std::vector<int32_t> CheckFreeList() const;
  void CheckPublished(const std::vector<int32_t>& place) const;

  int32_t total_;
  int32_t page_size_;
  HashFunction hash_;
  int32_t used_ = 0;
  int32_t cached_ = 0;
  int32_t first_free_ = kNone;  // allocated next
  int32_t last_free_ = kNone;   // most recently used
  std::vector<Page> pages_;
  std::vector<int32_t> tokens_;  // [total, page_size], of published pages
  // Hash to the first published page of the list over Page::same_hash.
  absl::flat_hash_map<uint64_t, int32_t> by_hash_;
};

}  // namespace nibble::scheduler
