// The input of linear layers on the GPU.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/runtime.h"
#include "kernels/linear.h"
#include "kernels/tensor.h"

namespace nibble::kernels::cuda {

// Elements between two rows of activations of k columns: whole 128-byte lines.
constexpr int64_t ActivationPitch(int64_t k) { return (k + 63) / 64 * 64; }

// BF16 or FP16 [max_rows, k] in device memory, rows pitch() elements apart;
// what lies between k and pitch() starts as zeros. Owned by the model, used by
// the engine thread only.
class CudaActivations final : public Activations {
 public:
  // RESOURCE_EXHAUSTED when the device has not that much left. Zeroed on the
  // stream.
  static absl::StatusOr<std::unique_ptr<CudaActivations>> Make(
      int64_t max_rows, int64_t k, DType dtype, const Stream& stream);

  DType dtype() const { return dtype_; }
  int64_t pitch() const { return ActivationPitch(k()); }  // elements
  std::byte* Row(int64_t row) const;
  // The whole of it.
  TensorView View() const;

 private:
  CudaActivations(int64_t max_rows, int64_t k, DType dtype,
                  DeviceBuffer buffer);

  DType dtype_;
  DeviceBuffer buffer_;
};

}  // namespace nibble::kernels::cuda
