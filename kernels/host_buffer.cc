#include "kernels/host_buffer.h"

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace nibble::kernels {
namespace {

constexpr std::align_val_t kAlignment{64};  // a cache line, an AVX-512 vector

// Memory from the aligned operator new. Immutable but for its contents.
class HostBuffer final : public Buffer {
 public:
  HostBuffer(void* data, int64_t size_bytes)
      : data_(data), size_bytes_(size_bytes) {}
  ~HostBuffer() override { ::operator delete(data_, kAlignment); }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  void* data() override { return data_; }
  int64_t size_bytes() const override { return size_bytes_; }

 private:
  void* data_;
  int64_t size_bytes_;
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
  void* data =
      ::operator new(static_cast<size_t>(bytes), kAlignment, std::nothrow);
  if (data == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate ", bytes, " bytes of host memory"));
  }
  std::memset(data, 0, static_cast<size_t>(bytes));
  return std::make_unique<HostBuffer>(data, bytes);
}

}  // namespace nibble::kernels
