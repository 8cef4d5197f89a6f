// The longest of many strings that stands at a place in a text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/container/flat_hash_map.h"

namespace nibble::model {

// Strings with ids, one node a prefix. Built once, then immutable and
// thread-safe; owned by the tokenizer part that searches with it. A search
// costs at most the length of the longest string.
class ByteTrie final {
 public:
  struct Match {
    int32_t id = -1;    // -1: no string stands here
    size_t length = 0;  // bytes
  };

  ByteTrie() { first_.fill(kNone); }

  // `text` must not be empty. Of equal strings the last one counts.
  void Insert(std::string_view text, int32_t id) {
    int32_t node = kRoot;
    for (const char c : text) {
      const auto byte = static_cast<uint8_t>(c);
      int32_t& next = node == kRoot ? first_[byte] : rest_[Edge(node, byte)];
      if (next == kNone) next = ++nodes_;
      node = next;
    }
    ids_[node] = id;
  }

  Match Longest(std::string_view text) const {
    Match best;
    int32_t node = kRoot;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto byte = static_cast<uint8_t>(text[i]);
      node = Next(node, byte);
      if (node == kNone) break;
      const auto id = ids_.find(node);
      if (id != ids_.end()) best = {id->second, i + 1};
    }
    return best;
  }

  bool empty() const { return nodes_ == kRoot; }

 private:
  static constexpr int32_t kNone = 0;
  static constexpr int32_t kRoot = 1;

  static uint64_t Edge(int32_t node, uint8_t byte) {
    return static_cast<uint64_t>(node) << 8 | byte;
  }
  int32_t Next(int32_t node, uint8_t byte) const {
    if (node == kRoot) return first_[byte];
    const auto edge = rest_.find(Edge(node, byte));
    return edge == rest_.end() ? kNone : edge->second;
  }

  int32_t nodes_ = kRoot;           // the number of the newest node
  std::array<int32_t, 256> first_;  // edges of the root, the hot ones
  absl::flat_hash_map<uint64_t, int32_t> rest_;
  absl::flat_hash_map<int32_t, int32_t> ids_;  // node -> id
};

}  // namespace nibble::model
