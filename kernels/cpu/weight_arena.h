// Memory for the repacked weights of many layers, side by side.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "base/checked_math.h"
#include "kernels/host_memory.h"

namespace nibble::kernels::cpu {

// Part of a chunk of a WeightArena. Owned by a linear layer.
struct ArenaSpan {
  std::byte* data = nullptr;
  int64_t size_bytes = 0;
  // shared_ptr: the layers within a chunk go in any order, with the last of
  // them it is freed.
  std::shared_ptr<HostMemory> chunk = nullptr;
};

// Puts weights behind each other into chunks large enough for huge pages: the
// layers of a small model have less than such a page each, and a step that
// reads them through 4 KB pages spends half its time walking page tables.
// Owned by a backend; loading thread only.
class WeightArena final {
 public:
  // Zero-filled, aligned to kAlignment; `bytes` > 0. RESOURCE_EXHAUSTED when
  // the system has no more.
  absl::StatusOr<ArenaSpan> Allocate(int64_t bytes) {
    if (chunk_ == nullptr || bytes > chunk_->size_bytes() - used_bytes_) {
      absl::StatusOr<HostMemory> memory =
          HostMemory::Allocate(std::max(bytes, kChunkBytes));
      if (!memory.ok()) return memory.status();
      chunk_ = std::make_shared<HostMemory>(*std::move(memory));
      used_bytes_ = 0;
    }
    const ArenaSpan span{chunk_->data() + used_bytes_, bytes, chunk_};
    used_bytes_ = std::min(used_bytes_ + RoundUp(bytes, kAlignment),
                           chunk_->size_bytes());
    return span;
  }

 private:
  static constexpr int64_t kAlignment = 64;  // a cache line
  // Untouched memory costs addresses only.
  static constexpr int64_t kChunkBytes = int64_t{64} << 20;

  std::shared_ptr<HostMemory> chunk_;  // the one being filled
  int64_t used_bytes_ = 0;             // of it
};

}  // namespace nibble::kernels::cpu
