#include "kernels/host_buffer.h"

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "kernels/host_memory.h"

namespace nibble::kernels {
namespace {

// Memory straight from the system. Owned by whoever asked the backend for it.
class HostBuffer final : public Buffer {
 public:
  explicit HostBuffer(HostMemory memory) : memory_(std::move(memory)) {}

  void* data() override { return memory_.data(); }
  int64_t size_bytes() const override { return memory_.size_bytes(); }

 private:
  HostMemory memory_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Buffer>> AllocateHostBuffer(int64_t bytes) {
  NIBBLE_CHECK_GE(bytes, 0);
  // Asked before the allocator is: with overcommit it would say yes, and the
  // process would be killed when it touches the memory.
  const auto machine_bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) *
                             static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  if (bytes > machine_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate ", bytes,
                     " bytes of host memory: the machine has ", machine_bytes));
  }
  NIBBLE_ASSIGN_OR_RETURN(HostMemory memory, HostMemory::Allocate(bytes));
  return std::make_unique<HostBuffer>(std::move(memory));
}

}  // namespace nibble::kernels
