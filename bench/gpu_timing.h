// Times of kernels on one device, as CUDA events see them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "absl/status/statusor.h"
#include "kernels/cuda/runtime.h"

namespace nibble::bench {

// Buffers that one kernel walks through, so that none of them is in the L2
// when its turn comes again: `copies` of `bytes`, `stride` bytes apart.
// Borrowed device memory. By value.
struct Rotation {
  const std::byte* data = nullptr;
  int64_t bytes = 0;
  int64_t stride = 0;
  int copies = 1;

  const std::byte* At(int64_t node) const {
    return data + node % copies * stride;
  }
};

// A stream, a buffer to empty the L2 with, and how often to repeat. Owned by
// main, used by its thread only.
class GpuTimer final {
 public:
  static absl::StatusOr<GpuTimer> Make(int repeats);

  const kernels::cuda::Stream& stream() const { return stream_; }
  int repeats() const { return repeats_; }

  // Microseconds of what `enqueue` puts on the stream, with a cold L2: the
  // median of `repeats` (0: the timer's own number). Includes what an empty
  // launch takes.
  double ColdUs(const std::function<void()>& enqueue, int repeats = 0) const;

  // The same of one launch, whose code is loaded. Rests ten times as long
  // afterwards, so that what is timed next finds the clocks that the power
  // limit allows a device with nothing else to do.
  double RestedUs(const std::function<void()>& enqueue) const;

  // Microseconds of a node when `enqueue(i)`, i = 0, 1, ..., make one graph,
  // each node reading `bytes` of weights: 200 nodes, or fewer where they take
  // more than 10 ms, but enough to read 150 MB. Median of 5 runs.
  double NodeUs(double expected_us, int64_t bytes,
                const std::function<void(int64_t)>& enqueue) const;

  // Microseconds of `enqueue(i)`, i = 0, 1, ..., back to back for so long: the
  // mean over the last second (or all, if shorter), in which `watch` is called
  // every 20 ms or so while the device is busy.
  double SustainedUs(double seconds, double expected_us,
                     const std::function<void(int64_t)>& enqueue,
                     const std::function<void()>& watch) const;

  // What a kernel that only reads takes for the bytes of a buffer: cold, and
  // as the node of a graph with programmatic dependent launch. The best of
  // several load patterns, measured once for each size.
  double ReadColdUs(const Rotation& buffers);
  double ReadNodeUs(const Rotation& buffers);

 private:
  struct Span {
    kernels::cuda::Event begin{kernels::cuda::Event::Kind::kTiming};
    kernels::cuda::Event end{kernels::cuda::Event::Kind::kTiming};
  };
  static double MedianUs(const std::vector<Span>& spans);
  void EnqueueCold(const std::function<void()>& enqueue,
                   const Span& span) const;

  GpuTimer(int repeats, kernels::cuda::DeviceBuffer flush);

  kernels::cuda::Stream stream_;
  kernels::cuda::DeviceBuffer flush_;
  int repeats_;
  std::map<int64_t, double> read_cold_us_;
  std::map<int64_t, double> read_node_us_;
};

// What the device can do at best, measured. By value.
struct Ceilings {
  double copy_gbps = 0;  // device to device, read + written
  double read_gbps = 0;  // of 2 GiB
  double empty_us = 0;   // an empty kernel between two events
  double peak_gbps() const {
    return copy_gbps > read_gbps ? copy_gbps : read_gbps;
  }
};
absl::StatusOr<Ceilings> MeasureCeilings(GpuTimer& timer);

}  // namespace nibble::bench
