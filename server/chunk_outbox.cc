#include "server/chunk_outbox.h"

namespace nibble::server {

void ChunkOutbox::Push(v1::GenerateBatchChunk chunk) {
  const size_t bytes = chunk.ByteSizeLong();
  bytes_ += bytes;
  const Key key(chunk.request_index(), chunk.chunk().index());
  const auto found = last_.find(key);
  const bool grows = found != last_.end() && chunk.has_chunk() &&
                     found->second->bytes + bytes <= kMaxMergedBytes;
  if (!grows) {
    const bool may_grow = chunk.has_chunk();
    items_.push_back({std::move(chunk), bytes});
    if (may_grow) last_[key] = &items_.back();
    return;
  }
  Item& item = *found->second;
  v1::GenerateChunk& to = *item.chunk.mutable_chunk();
  v1::GenerateChunk& from = *chunk.mutable_chunk();
  to.mutable_text()->append(from.text());
  for (v1::Token& token : *from.mutable_tokens()) {
    *to.add_tokens() = std::move(token);
  }
  if (from.has_finish())
    *to.mutable_finish() = std::move(*from.mutable_finish());
  item.bytes += bytes;
}

std::optional<v1::GenerateBatchChunk> ChunkOutbox::Pop() {
  if (items_.empty()) return std::nullopt;
  Item& item = items_.front();
  const auto found =
      last_.find({item.chunk.request_index(), item.chunk.chunk().index()});
  if (found != last_.end() && found->second == &item) last_.erase(found);
  bytes_ -= item.bytes;
  v1::GenerateBatchChunk chunk = std::move(item.chunk);
  items_.pop_front();
  return chunk;
}

void ChunkOutbox::Clear() {
  items_.clear();
  last_.clear();
  bytes_ = 0;
}

}  // namespace nibble::server
