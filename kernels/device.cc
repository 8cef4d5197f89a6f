#include "kernels/device.h"

#include <mutex>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/cpu_count.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/reference/reference_backend.h"

namespace nibble::kernels {
namespace {

constexpr int32_t kMaxThreads = 1024;

// The pool of `threads` threads that the backends of this process share.
// shared_ptr: it ends with the last backend that uses it.
std::shared_ptr<cpu::ThreadPool> SharedPool(int threads) {
  static std::mutex mutex;
  static std::weak_ptr<cpu::ThreadPool> last;  // guarded by `mutex`
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<cpu::ThreadPool> pool = last.lock();
  if (pool == nullptr || pool->threads() != threads) {
    pool = std::make_shared<cpu::ThreadPool>(threads);
    last = pool;
  }
  return pool;
}

}  // namespace

std::optional<Device> DeviceByName(std::string_view name) {
  if (name == "auto") return Device::kAuto;
  if (name == "cpu") return Device::kCpu;
  if (name == "reference") return Device::kReference;
  if (name == "cuda") return Device::kCuda;
  return std::nullopt;
}

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(Device device,
                                                     int32_t threads) {
  if (threads < 0 || threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads = ", threads, ", must be in [0, ", kMaxThreads,
                     "]; 0 takes the cores this process may use"));
  }
  const int count = threads > 0 ? threads : cpu::UsableCpus();
  switch (device) {
    case Device::kAuto:
    case Device::kCpu:
      return MakeCpuBackend({.pool = SharedPool(count)});
    case Device::kReference:
      return MakeReferenceBackend({.threads = count});
    case Device::kCuda:
      break;
  }
  return absl::FailedPreconditionError(
      "device cuda: this build has no CUDA backend; choose auto, cpu or "
      "reference");
}

}  // namespace nibble::kernels
