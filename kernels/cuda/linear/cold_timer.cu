#include <cstdint>
#include <utility>

#include "base/status.h"
#include "kernels/cuda/linear/cold_timer.h"

namespace nibble::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 8;
constexpr int64_t kWordBytes = 16;

// Reads words [0, count). They are zeros, which the compiler does not know.
__global__ void __launch_bounds__(kThreads)
    ReadKernel(const uint4* words, int64_t count, uint32_t* never) {
  uint32_t any = 0;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       i < count; i += stride) {
    const uint4 word = words[i];
    any |= word.x | word.y | word.z | word.w;
  }
  if (any != 0) *never = any;
}

}  // namespace

ColdTimer::ColdTimer(const Stream* stream, DeviceBuffer buffer, int blocks)
    : stream_(stream),
      buffer_(std::move(buffer)),
      words_(buffer_.bytes() / kWordBytes - 1),
      blocks_(blocks) {}

absl::StatusOr<std::unique_ptr<ColdTimer>> ColdTimer::Make(
    const DeviceInfo& device, const Stream* stream) {
  int l2_bytes = 0;
  NIBBLE_CUDA_CHECK(
      cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device.index));
  const int64_t bytes =
      2 * static_cast<int64_t>(l2_bytes) / kWordBytes * kWordBytes + kWordBytes;
  NIBBLE_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Make(bytes));
  NIBBLE_CUDA_CHECK(cudaMemsetAsync(buffer.data(), 0, bytes, stream->get()));
  return std::unique_ptr<ColdTimer>(
      new ColdTimer(stream, std::move(buffer),
                    device.multiprocessors * kBlocksPerMultiprocessor));
}

double ColdTimer::RunUs(const std::function<void()>& enqueue) {
  // It runs for tens of microseconds, in which the host enqueues the rest.
  ReadKernel<<<blocks_, kThreads, 0, stream_->get()>>>(
      buffer_.as<const uint4>(), words_,
      buffer_.as<uint32_t>() + words_ * (kWordBytes / 4));
  NIBBLE_CUDA_CHECK(cudaGetLastError());
  begin_.Record(*stream_);
  enqueue();
  end_.Record(*stream_);
  end_.Synchronize();
  return ElapsedUs(begin_, end_);
}

}  // namespace nibble::kernels::cuda
