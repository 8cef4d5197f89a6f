// Host memory for the backends that compute on the host.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace nibble::kernels {

// Zero-filled host memory, aligned for any SIMD width, resident only where it
// was touched: KV pages nobody has used yet cost nothing. RESOURCE_EXHAUSTED
// when it is more than the machine has or the system gives; `bytes` >= 0.
absl::StatusOr<std::unique_ptr<Buffer>> AllocateHostBuffer(int64_t bytes);

}  // namespace nibble::kernels
