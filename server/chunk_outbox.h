// What a stream still has to send.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <optional>
#include <utility>

#include "nibble/v1/nibble.pb.h"

namespace nibble::server {

// Chunks in order; while the client is slow, chunks of the same output are
// merged, so that what waits grows by text and not by messages. Owned by one
// call, which locks around it.
class ChunkOutbox final {
 public:
  // A message stops growing here: far below the 4 MiB that clients accept.
  static constexpr size_t kMaxMergedBytes = 64 << 10;

  // Appends to the waiting chunk of the same request and output, or to the
  // end. An error chunk is never merged.
  void Push(v1::GenerateBatchChunk chunk);
  // The oldest chunk.
  std::optional<v1::GenerateBatchChunk> Pop();
  void Clear();

  bool empty() const { return items_.empty(); }
  size_t size() const { return items_.size(); }
  // About what the waiting chunks take on the wire.
  size_t bytes() const { return bytes_; }

 private:
  struct Item {
    v1::GenerateBatchChunk chunk;
    size_t bytes = 0;
  };
  using Key = std::pair<int32_t, int32_t>;  // request, output

  std::list<Item> items_;
  std::map<Key, Item*> last_;  // the chunk of an output that may still grow
  size_t bytes_ = 0;
};

}  // namespace nibble::server
