// The input of linear layers on the GPU.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/linear/w8a8_layout.h"
#include "kernels/cuda/runtime.h"
#include "kernels/linear.h"
#include "kernels/tensor.h"

namespace nibble::kernels::cuda {

// Elements between two rows of activations of k columns: whole 128-byte lines.
constexpr int64_t ActivationPitch(int64_t k) { return (k + 63) / 64 * 64; }

// BF16 or FP16 [max_rows, k] in device memory, rows pitch() elements apart;
// what lies between k and pitch() starts as zeros. Beside it, where the layers
// have a wide packing, codes in 8 bits with a scale for each row
// (activation_codes.h): who writes a row writes it in the encoding that its
// path reads, decode rows in 16 bits, prompt rows in codes. Owned by the model,
// used by the engine thread only.
class CudaActivations final : public Activations {
 public:
  // RESOURCE_EXHAUSTED when the device has not that much left. Zeroed on the
  // stream. `codes`: the packing of the layers; kInt4 reads codes of kInt8.
  static absl::StatusOr<std::unique_ptr<CudaActivations>> Make(
      int64_t max_rows, int64_t k, DType dtype, const Stream& stream,
      WidePacking codes = WidePacking::kNone);

  DType dtype() const { return dtype_; }
  int64_t pitch() const { return ActivationPitch(k()); }  // elements
  std::byte* Row(int64_t row) const;
  // The whole of it.
  TensorView View() const;

  // What the codes are; kNone: there are none.
  WidePacking codes() const { return codes_kind_; }
  int64_t code_pitch() const { return W8Pitch(k()); }  // bytes
  std::byte* CodeRow(int64_t row) const;
  float* Scales(int64_t row) const;  // of that row and those behind it

 private:
  CudaActivations(int64_t max_rows, int64_t k, DType dtype)
      : Activations(max_rows, k), dtype_(dtype) {}

  DType dtype_;
  WidePacking codes_kind_ = WidePacking::kNone;
  DeviceBuffer buffer_, codes_, scales_;
};

}  // namespace nibble::kernels::cuda
