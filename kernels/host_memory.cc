#include "kernels/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace nibble::kernels {
namespace {

// Weights and caches are read in long streams: huge pages spare the walks of
// the page tables. They need this alignment, and smaller blocks get none.
constexpr size_t kHugePageBytes = size_t{2} << 20;

}  // namespace

HostMemory::~HostMemory() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
}

HostMemory::HostMemory(HostMemory&& other) noexcept {
  *this = std::move(other);
}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  return *this;
}

absl::StatusOr<HostMemory> HostMemory::Allocate(int64_t bytes) {
  NIBBLE_CHECK_GE(bytes, 0);
  const auto exhausted = [bytes] {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate ", bytes, " bytes of memory"));
  };
  constexpr auto kMostBytes =
      std::numeric_limits<int64_t>::max() - int64_t{kHugePageBytes};
  if (bytes > kMostBytes) return exhausted();
  const bool huge = static_cast<size_t>(bytes) >= kHugePageBytes;
  const size_t mapping_bytes =
      std::max<size_t>(bytes, 1) + (huge ? kHugePageBytes : 0);
  void* mapping = mmap(nullptr, mapping_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return exhausted();
  HostMemory memory;
  memory.mapping_ = mapping;
  memory.mapping_bytes_ = mapping_bytes;
  memory.size_bytes_ = bytes;
  auto address = reinterpret_cast<uintptr_t>(mapping);
  if (huge) {
    address = (address + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
    // Advice only: where it is refused, small pages do.
    madvise(reinterpret_cast<void*>(address), bytes, MADV_HUGEPAGE);
  }
  memory.data_ = reinterpret_cast<std::byte*>(address);
  return memory;
}

}  // namespace nibble::kernels
