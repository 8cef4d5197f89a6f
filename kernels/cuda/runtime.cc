#include "kernels/cuda/runtime.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace nibble::kernels::cuda {
namespace internal {

void CudaFailed(const char* file, int line, const char* call,
                cudaError_t error) {
  ::nibble::internal::CheckFailed(
      file, line,
      absl::StrCat(call, ": ", cudaGetErrorName(error), ": ",
                   cudaGetErrorString(error)));
}

// What these return would at best repeat an earlier call's error.
void DeviceFree::operator()(std::byte* data) const { cudaFree(data); }
void PinnedFree::operator()(std::byte* data) const { cudaFreeHost(data); }
void StreamFree::operator()(cudaStream_t stream) const {
  cudaStreamDestroy(stream);
}
void EventFree::operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
void GraphFree::operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
void GraphExecFree::operator()(cudaGraphExec_t graph) const {
  cudaGraphExecDestroy(graph);
}

}  // namespace internal

namespace {

absl::Status AllocationStatus(const char* what, int64_t bytes,
                              cudaError_t error) {
  if (error != cudaErrorMemoryAllocation) {
    return absl::InternalError(absl::StrCat("allocating ", bytes, " bytes of ",
                                            what, ": ",
                                            cudaGetErrorString(error)));
  }
  cudaGetLastError();  // or the next launch's check would see it
  return absl::ResourceExhaustedError(
      absl::StrCat("no ", bytes, " bytes of ", what, " are left"));
}

}  // namespace

absl::StatusOr<DeviceBuffer> DeviceBuffer::Make(int64_t bytes) {
  NIBBLE_CHECK(bytes >= 0);
  DeviceBuffer buffer;
  if (bytes == 0) return buffer;
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (error != cudaSuccess) {
    return AllocationStatus("device memory", bytes, error);
  }
  buffer.data_.reset(static_cast<std::byte*>(data));
  buffer.bytes_ = bytes;
  return buffer;
}

absl::StatusOr<PinnedBuffer> PinnedBuffer::Make(int64_t bytes) {
  NIBBLE_CHECK(bytes >= 0);
  PinnedBuffer buffer;
  if (bytes == 0) return buffer;
  void* data = nullptr;
  const cudaError_t error = cudaMallocHost(&data, static_cast<size_t>(bytes));
  if (error != cudaSuccess) {
    return AllocationStatus("page-locked memory", bytes, error);
  }
  buffer.data_.reset(static_cast<std::byte*>(data));
  buffer.bytes_ = bytes;
  return buffer;
}

Stream::Stream() {
  cudaStream_t stream = nullptr;
  NIBBLE_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  stream_.reset(stream);
}

void Stream::Synchronize() const {
  NIBBLE_CUDA_CHECK(cudaStreamSynchronize(get()));
}

Event::Event(Kind kind) {
  cudaEvent_t event = nullptr;
  NIBBLE_CUDA_CHECK(cudaEventCreateWithFlags(
      &event,
      kind == Kind::kTiming ? cudaEventDefault : cudaEventDisableTiming));
  event_.reset(event);
}

void Event::Record(const Stream& stream) const {
  NIBBLE_CUDA_CHECK(cudaEventRecord(get(), stream.get()));
}

void Event::Synchronize() const {
  NIBBLE_CUDA_CHECK(cudaEventSynchronize(get()));
}

double ElapsedUs(const Event& begin, const Event& end) {
  float ms = 0;
  NIBBLE_CUDA_CHECK(cudaEventElapsedTime(&ms, begin.get(), end.get()));
  return static_cast<double>(ms) * 1e3;
}

Graph Graph::Capture(const Stream& stream,
                     const std::function<void()>& enqueue) {
  NIBBLE_CUDA_CHECK(
      cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  enqueue();
  cudaGraph_t graph = nullptr;
  NIBBLE_CUDA_CHECK(cudaStreamEndCapture(stream.get(), &graph));
  Graph captured;
  captured.graph_.reset(graph);
  return captured;
}

GraphExec::GraphExec(const Graph& graph) {
  cudaGraphExec_t exec = nullptr;
  NIBBLE_CUDA_CHECK(cudaGraphInstantiate(&exec, graph.get(), 0));
  graph_.reset(exec);
}

void GraphExec::Launch(const Stream& stream) const {
  NIBBLE_CUDA_CHECK(cudaGraphLaunch(graph_.get(), stream.get()));
}

}  // namespace nibble::kernels::cuda
