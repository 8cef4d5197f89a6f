// What the linear layers of one CUDA backend share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/linear/cold_timer.h"
#include "kernels/cuda/linear/plan_cache.h"
#include "kernels/cuda/runtime.h"
#include "kernels/linear.h"
#include "kernels/tensor.h"

namespace nibble::kernels::cuda {

// Device memory that the layers of one stream use one after the other. Owned
// by the backend; grows while models load, and must not once a graph that uses
// it has been captured.
class LinearScratch final {
 public:
  // RESOURCE_EXHAUSTED when the device has not that much left.
  absl::Status Reserve(int64_t bytes);
  std::byte* data() const { return buffer_.data(); }

 private:
  DeviceBuffer buffer_;
};

// Borrowed; all of it outlives the layers. By value.
struct CudaLinearContext {
  DeviceInfo device;
  const Stream* stream = nullptr;
  LinearScratch* scratch = nullptr;
  PlanCache* plans = nullptr;
  ColdTimer* timer = nullptr;    // null: the first candidates are taken
  double tune_seconds = 2.0;     // at most, for each shape not in `plans`
  DType x_dtype = DType::kBF16;  // kBF16 or kF16
  int pack_threads = 1;
  // Programmatic dependent launch, where a kernel can.
  bool overlap = true;
};

// `status` with the layer and `what` of it in front.
absl::Status AnnotateLayer(const absl::Status& status,
                           const LinearOptions& options, std::string_view what);

// Host memory [bytes] copied to new device memory; an error names the layer and
// `what`. Returns when `data` may go.
absl::StatusOr<DeviceBuffer> UploadForLayer(const void* data, int64_t bytes,
                                            const Stream& stream,
                                            const LinearOptions& options,
                                            std::string_view what);

}  // namespace nibble::kernels::cuda
