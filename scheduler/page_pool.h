// Who owns which page of the KV cache, and which pages can be used again.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace nibble::scheduler {

// How the keys and values of a page were computed. Under stable numerics
// prompt rows and generated rows run on different kernels, so a prompt hits
// only pages that a prompt made.
enum class PageOrigin : uint8_t { kPrompt, kGenerated };

// Page ids, reference counts and prefix hashes. Owned by the Scheduler, engine
// thread only; knows ids, not bytes.
//
// A page is in use (count > 0), cached (count 0, its contents still findable)
// or empty. The free list is in LRU order, empty pages first, so it doubles as
// the prefix cache: an allocation takes the page that was least lately useful.
// used() + cached() + empty() == total() always.
class PagePool final {
 public:
  // Maps (previous hash, tokens of the page, salt and origin) to a hash; a
  // test may force collisions. Never trusted alone: tokens are compared.
  using HashFunction = uint64_t (*)(uint64_t previous,
                                    std::span<const int32_t> tokens);

  PagePool(int32_t total_pages, int32_t page_size, HashFunction hash);

  int32_t page_size() const { return page_size_; }
  int32_t total() const { return static_cast<int32_t>(pages_.size()); }
  int32_t used() const { return used_; }
  int32_t cached() const { return cached_; }
  int32_t empty() const { return total() - used_ - cached_; }
  // Pages an Allocate can still give.
  int32_t available() const { return total() - used_; }

  // The first hash of a chain.
  static uint64_t ChainStart(uint64_t salt);
  uint64_t ChainHash(uint64_t previous, std::span<const int32_t> tokens,
                     PageOrigin origin) const;

  // A page with count 1 and undefined contents, or nothing when none is left.
  std::optional<int32_t> Allocate();

  // The page that holds exactly `tokens` after the prefix whose page is
  // `previous_page` (-1 at the start); takes a reference. The whole prefix is
  // compared, through the chain of pages, not the hash alone.
  std::optional<int32_t> Find(uint64_t hash, int32_t previous_page,
                              std::span<const int32_t> tokens, uint64_t salt,
                              PageOrigin origin);

  // Makes a full page findable. If an equal page is findable already nothing
  // changes: the caller keeps its own.
  void Publish(int32_t page, uint64_t hash, int32_t previous_page,
               std::span<const int32_t> tokens, uint64_t salt,
               PageOrigin origin);

  // Gives one reference back; at count 0 a published page becomes cached
  // (most recently used), another one empty.
  void Release(int32_t page);

  // Forgets every cached page.
  void DropCache();

  // Checks every invariant; for tests. CHECK-fails with what is wrong.
  void CheckConsistency() const;

 private:
  struct Page;
  // The implementation's fields: see page_pool.cc for the list's shape.
  int32_t page_size_;
  HashFunction hash_;
  int32_t used_ = 0;
  int32_t cached_ = 0;
  std::vector<Page> pages_;
};

}  // namespace nibble::scheduler
