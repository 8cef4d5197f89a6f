#include "kernels/cuda/linear/cuda_activations.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checked_math.h"
#include "base/status.h"

namespace nibble::kernels::cuda {

absl::StatusOr<std::unique_ptr<CudaActivations>> CudaActivations::Make(
    int64_t max_rows, int64_t k, DType dtype, const Stream& stream,
    WidePacking codes) {
  NIBBLE_CHECK(max_rows > 0 && k > 0);
  NIBBLE_CHECK(dtype == DType::kBF16 || dtype == DType::kF16);
  std::unique_ptr<CudaActivations> activations(
      new CudaActivations(max_rows, k, dtype));
  // Zeroed [max_rows, pitch] bytes.
  const auto fill = [&](int64_t pitch, DeviceBuffer& buffer) -> absl::Status {
    const std::optional<int64_t> bytes = CheckedMul(max_rows, pitch);
    if (!bytes.has_value()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "activations: cannot allocate ", max_rows, " x ", k, " elements"));
    }
    absl::StatusOr<DeviceBuffer> made = DeviceBuffer::Make(*bytes);
    if (!made.ok()) {
      return absl::Status(
          made.status().code(),
          absl::StrCat("activations [", max_rows, ", ", k,
                       "]: ", std::string(made.status().message())));
    }
    buffer = *std::move(made);
    NIBBLE_CUDA_CHECK(cudaMemsetAsync(
        buffer.data(), 0, static_cast<size_t>(*bytes), stream.get()));
    return absl::OkStatus();
  };
  NIBBLE_RETURN_IF_ERROR(
      fill(ActivationPitch(k) * ElementBytes(dtype), activations->buffer_));
  if (codes != WidePacking::kNone) {
    activations->codes_kind_ =
        codes == WidePacking::kInt4 ? WidePacking::kInt8 : codes;
    NIBBLE_RETURN_IF_ERROR(fill(W8Pitch(k), activations->codes_));
    NIBBLE_RETURN_IF_ERROR(
        fill(static_cast<int64_t>(sizeof(float)), activations->scales_));
  }
  return activations;
}

std::byte* CudaActivations::Row(int64_t row) const {
  NIBBLE_DCHECK(row >= 0 && row <= max_rows());
  return buffer_.data() + row * pitch() * ElementBytes(dtype_);
}

std::byte* CudaActivations::CodeRow(int64_t row) const {
  NIBBLE_DCHECK(codes_kind_ != WidePacking::kNone);
  NIBBLE_DCHECK(row >= 0 && row <= max_rows());
  return codes_.data() + row * code_pitch();
}

float* CudaActivations::Scales(int64_t row) const {
  NIBBLE_DCHECK(codes_kind_ != WidePacking::kNone);
  NIBBLE_DCHECK(row >= 0 && row <= max_rows());
  return scales_.as<float>() + row;
}

TensorView CudaActivations::View() const {
  return {.data = buffer_.data(),
          .dtype = dtype_,
          .rows = max_rows(),
          .cols = k(),
          .row_stride = pitch()};
}

}  // namespace nibble::kernels::cuda
