// The CUDA runtime's resources as move-only owners, and the check that every
// call into it goes through. cudaMalloc and cudaFree occur in runtime.cc only.
//
// All of them belong to the device that is current in the thread that makes
// them; that device must be current wherever they are used.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"

namespace nibble::kernels::cuda {

namespace internal {
[[noreturn]] void CudaFailed(const char* file, int line, const char* call,
                             cudaError_t error);

struct DeviceFree {
  void operator()(std::byte* data) const;
};
struct PinnedFree {
  void operator()(std::byte* data) const;
};
struct StreamFree {
  void operator()(cudaStream_t stream) const;
};
struct EventFree {
  void operator()(cudaEvent_t event) const;
};
struct GraphFree {
  void operator()(cudaGraph_t graph) const;
};
struct GraphExecFree {
  void operator()(cudaGraphExec_t graph) const;
};
}  // namespace internal

// A failed call is fatal: after one, nothing on the device can be trusted.
// What may fail for want of memory has a Make that returns a status.
#define NIBBLE_CUDA_CHECK(call)                                                \
  do {                                                                         \
    if (const cudaError_t nibble_cuda_error = (call);                          \
        nibble_cuda_error != cudaSuccess) [[unlikely]]                         \
      ::nibble::kernels::cuda::internal::CudaFailed(__FILE__, __LINE__, #call, \
                                                    nibble_cuda_error);        \
  } while (false)

// Bytes of device memory. Move-only; whoever holds it owns them. Not zeroed.
class DeviceBuffer final {
 public:
  DeviceBuffer() = default;  // empty
  // RESOURCE_EXHAUSTED when the device has not that much left.
  static absl::StatusOr<DeviceBuffer> Make(int64_t bytes);

  std::byte* data() const { return data_.get(); }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }
  int64_t bytes() const { return data_ == nullptr ? 0 : bytes_; }

 private:
  std::unique_ptr<std::byte, internal::DeviceFree> data_;
  int64_t bytes_ = 0;
};

// Bytes of page-locked host memory, which the device copies from and to
// without a detour. Move-only; whoever holds it owns them. Not zeroed.
class PinnedBuffer final {
 public:
  PinnedBuffer() = default;  // empty
  // RESOURCE_EXHAUSTED when the system refuses to lock that much.
  static absl::StatusOr<PinnedBuffer> Make(int64_t bytes);

  std::byte* data() const { return data_.get(); }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }
  int64_t bytes() const { return data_ == nullptr ? 0 : bytes_; }

 private:
  std::unique_ptr<std::byte, internal::PinnedFree> data_;
  int64_t bytes_ = 0;
};

// A stream that does not wait for the default stream. Move-only; used by one
// thread at a time.
class Stream final {
 public:
  Stream();
  cudaStream_t get() const { return stream_.get(); }
  // Blocks until all that was enqueued has been done.
  void Synchronize() const;

 private:
  std::unique_ptr<CUstream_st, internal::StreamFree> stream_;
};

// A point in a stream's work. Move-only; used by one thread at a time.
class Event final {
 public:
  enum class Kind : uint8_t { kOrder, kTiming };
  explicit Event(Kind kind = Kind::kOrder);
  cudaEvent_t get() const { return event_.get(); }
  void Record(const Stream& stream) const;
  // Blocks until the device has reached it.
  void Synchronize() const;

 private:
  std::unique_ptr<CUevent_st, internal::EventFree> event_;
};

// Device time between two kTiming events that were both reached.
double ElapsedUs(const Event& begin, const Event& end);

// What was enqueued while a stream was captured. Move-only.
class Graph final {
 public:
  // Runs `enqueue`, which enqueues work on `stream` (and nothing that waits
  // for it); nothing of it is executed.
  static Graph Capture(const Stream& stream,
                       const std::function<void()>& enqueue);
  cudaGraph_t get() const { return graph_.get(); }

 private:
  std::unique_ptr<CUgraph_st, internal::GraphFree> graph_;
};

// A graph made ready to run, any number of times. Move-only; one launch of it
// runs at a time.
class GraphExec final {
 public:
  explicit GraphExec(const Graph& graph);
  void Launch(const Stream& stream) const;

 private:
  std::unique_ptr<CUgraphExec_st, internal::GraphExecFree> graph_;
};

}  // namespace nibble::kernels::cuda
