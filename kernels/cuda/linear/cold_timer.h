// The time of work on the device when no cache holds any of its input.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/runtime.h"

namespace nibble::kernels::cuda {

// Empties the L2 by reading twice its size (written lines would be written
// back while the work runs, and slow it), then times by events. Owned by
// whoever loads a model, used by one thread.
class ColdTimer final {
 public:
  // RESOURCE_EXHAUSTED when the device has no memory for what is read. The
  // stream outlives it.
  static absl::StatusOr<std::unique_ptr<ColdTimer>> Make(
      const DeviceInfo& device, const Stream* stream);

  // Device microseconds of what `enqueue` puts on the stream. Waits for it.
  double RunUs(const std::function<void()>& enqueue);

 private:
  ColdTimer(const Stream* stream, DeviceBuffer buffer, int blocks);

  const Stream* stream_;
  DeviceBuffer buffer_;  // zeros, then a word that is never written
  int64_t words_;        // 16 bytes each, to read
  int blocks_;
  Event begin_{Event::Kind::kTiming};
  Event end_{Event::Kind::kTiming};
};

}  // namespace nibble::kernels::cuda
