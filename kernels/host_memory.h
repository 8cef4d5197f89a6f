// Large, aligned, zero-filled memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace nibble::kernels {

// Zero-filled memory straight from the system, aligned to a page or better,
// resident only where it was touched. Move-only; owned by whoever holds it.
class HostMemory final {
 public:
  HostMemory() = default;
  ~HostMemory();
  HostMemory(HostMemory&& other) noexcept;
  HostMemory& operator=(HostMemory&& other) noexcept;
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // RESOURCE_EXHAUSTED naming `bytes` (>= 0) when the system has no more.
  static absl::StatusOr<HostMemory> Allocate(int64_t bytes);

  std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
  void* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
};

}  // namespace nibble::kernels
