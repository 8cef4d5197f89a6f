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
    int64_t max_rows, int64_t k, DType dtype, const Stream& stream) {
  NIBBLE_CHECK(max_rows > 0 && k > 0);
  NIBBLE_CHECK(dtype == DType::kBF16 || dtype == DType::kF16);
  const std::optional<int64_t> bytes =
      CheckedMul(max_rows, ActivationPitch(k) * ElementBytes(dtype));
  if (!bytes.has_value()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "activations: cannot allocate ", max_rows, " x ", k, " elements"));
  }
  absl::StatusOr<DeviceBuffer> buffer = DeviceBuffer::Make(*bytes);
  if (!buffer.ok()) {
    return absl::Status(buffer.status().code(),
                        absl::StrCat("activations [", max_rows, ", ", k, "]: ",
                                     std::string(buffer.status().message())));
  }
  NIBBLE_CUDA_CHECK(cudaMemsetAsync(buffer->data(), 0,
                                    static_cast<size_t>(*bytes), stream.get()));
  return std::unique_ptr<CudaActivations>(
      new CudaActivations(max_rows, k, dtype, *std::move(buffer)));
}

CudaActivations::CudaActivations(int64_t max_rows, int64_t k, DType dtype,
                                 DeviceBuffer buffer)
    : Activations(max_rows, k), dtype_(dtype), buffer_(std::move(buffer)) {}

std::byte* CudaActivations::Row(int64_t row) const {
  NIBBLE_DCHECK(row >= 0 && row <= max_rows());
  return buffer_.data() + row * pitch() * ElementBytes(dtype_);
}

TensorView CudaActivations::View() const {
  return {.data = buffer_.data(),
          .dtype = dtype_,
          .rows = max_rows(),
          .cols = k(),
          .row_stride = pitch()};
}

}  // namespace nibble::kernels::cuda
