#include "kernels/cuda/linear/linear_context.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace nibble::kernels::cuda {

absl::Status LinearScratch::Reserve(int64_t bytes) {
  if (bytes <= buffer_.bytes()) return absl::OkStatus();
  buffer_ = DeviceBuffer();  // before its successor needs the room
  NIBBLE_ASSIGN_OR_RETURN(buffer_, DeviceBuffer::Make(bytes));
  return absl::OkStatus();
}

absl::Status AnnotateLayer(const absl::Status& status,
                           const LinearOptions& options,
                           std::string_view what) {
  return absl::Status(
      status.code(),
      absl::StrCat("linear layer '", options.name, "', ", std::string(what),
                   ": ", std::string(status.message())));
}

absl::StatusOr<DeviceBuffer> UploadForLayer(const void* data, int64_t bytes,
                                            const Stream& stream,
                                            const LinearOptions& options,
                                            std::string_view what) {
  absl::StatusOr<DeviceBuffer> buffer = DeviceBuffer::Make(bytes);
  if (!buffer.ok()) return AnnotateLayer(buffer.status(), options, what);
  if (bytes > 0) {
    NIBBLE_CUDA_CHECK(cudaMemcpyAsync(buffer->data(), data,
                                      static_cast<size_t>(bytes),
                                      cudaMemcpyHostToDevice, stream.get()));
    stream.Synchronize();
  }
  return buffer;
}

}  // namespace nibble::kernels::cuda
