#include "bench/gpu_timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "bench/gpu_probes.h"

namespace nibble::bench {
namespace {

using kernels::cuda::DeviceBuffer;
using kernels::cuda::ElapsedUs;
using kernels::cuda::Event;
using kernels::cuda::Graph;
using kernels::cuda::GraphExec;

// Several times any L2.
constexpr int64_t kFlushBytes = int64_t{256} << 20;
// Longer than the host needs to enqueue what is measured.
constexpr int64_t kSpinNs = 200'000;
// How much longer than a launch the device rests after it.
constexpr double kRestFactor = 10;
constexpr int64_t kGraphNodes = 200;
constexpr double kGraphUs = 10'000;
// What a graph reads at least before it comes to the same weights again.
constexpr int64_t kGraphBytes = 150'000'000;
constexpr int kGraphRuns = 5;
// What is enqueued at once when something runs for long.
constexpr double kBatchUs = 20'000;
constexpr double kLastSeconds = 1;
constexpr int kReadLoads[] = {4, 8, 16};

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

double GpuTimer::MedianUs(const std::vector<Span>& spans) {
  std::vector<double> us;
  us.reserve(spans.size());
  for (const Span& span : spans) us.push_back(ElapsedUs(span.begin, span.end));
  return Median(std::move(us));
}

GpuTimer::GpuTimer(int repeats, DeviceBuffer flush)
    : flush_(std::move(flush)), repeats_(repeats) {}

absl::StatusOr<GpuTimer> GpuTimer::Make(int repeats) {
  NIBBLE_ASSIGN_OR_RETURN(DeviceBuffer flush, DeviceBuffer::Make(kFlushBytes));
  GpuTimer timer(repeats, std::move(flush));
  LaunchFillBytes(timer.flush_.data(), kFlushBytes, 1, timer.stream_.get());
  return timer;
}

double GpuTimer::ColdUs(const std::function<void()>& enqueue,
                        int repeats) const {
  enqueue();  // loads the code
  std::vector<Span> spans(repeats > 0 ? repeats : repeats_);
  for (const Span& span : spans) EnqueueCold(enqueue, span);
  stream_.Synchronize();
  return MedianUs(spans);
}

void GpuTimer::EnqueueCold(const std::function<void()>& enqueue,
                           const Span& span) const {
  LaunchFlush(flush_.data(), kFlushBytes, stream_.get());
  LaunchSpin(kSpinNs, stream_.get());
  span.begin.Record(stream_);
  enqueue();
  span.end.Record(stream_);
}

double GpuTimer::RestedUs(const std::function<void()>& enqueue) const {
  const Span span;
  EnqueueCold(enqueue, span);
  stream_.Synchronize();
  const double us = ElapsedUs(span.begin, span.end);
  std::this_thread::sleep_for(
      std::chrono::duration<double, std::micro>(kRestFactor * us));
  return us;
}

double GpuTimer::NodeUs(double expected_us, int64_t bytes,
                        const std::function<void(int64_t)>& enqueue) const {
  const int64_t least =
      std::min(kGraphNodes, (kGraphBytes + bytes - 1) / bytes);
  const int64_t nodes = std::clamp(static_cast<int64_t>(kGraphUs / expected_us),
                                   least, kGraphNodes);
  const GraphExec graph(Graph::Capture(stream_, [&] {
    for (int64_t node = 0; node < nodes; ++node) enqueue(node);
  }));
  graph.Launch(stream_);
  std::vector<Span> spans(kGraphRuns);
  for (const Span& span : spans) {
    span.begin.Record(stream_);
    graph.Launch(stream_);
    span.end.Record(stream_);
  }
  stream_.Synchronize();
  return MedianUs(spans) / static_cast<double>(nodes);
}

double GpuTimer::SustainedUs(double seconds, double expected_us,
                             const std::function<void(int64_t)>& enqueue,
                             const std::function<void()>& watch) const {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const int64_t launches =
      std::max<int64_t>(1, std::llround(kBatchUs / expected_us));
  // Batch i lies between marks i and i + 1; one more is always under way.
  constexpr int kMarks = 3;
  std::vector<Event> marks;
  marks.reserve(kMarks);
  for (int i = 0; i < kMarks; ++i) marks.emplace_back(Event::Kind::kTiming);
  double us = 0;
  int64_t batches = 0, node = 0;
  const auto begin = Clock::now();
  marks[0].Record(stream_);
  for (int64_t batch = 0; batches == 0 || since(begin) < seconds; ++batch) {
    for (int64_t i = 0; i < launches; ++i) enqueue(node++);
    marks[(batch + 1) % kMarks].Record(stream_);
    if (batch == 0) continue;
    const Event& end = marks[batch % kMarks];
    end.Synchronize();
    if (since(begin) < seconds - kLastSeconds) continue;
    us += ElapsedUs(marks[(batch - 1) % kMarks], end);
    ++batches;
    watch();
  }
  stream_.Synchronize();
  return us / static_cast<double>(batches * launches);
}

double GpuTimer::ReadColdUs(const Rotation& buffers) {
  auto [entry, missing] = read_cold_us_.try_emplace(buffers.bytes, 1e9);
  if (!missing) return entry->second;
  for (const int loads : kReadLoads) {
    entry->second = std::min(entry->second, ColdUs([&] {
                               LaunchRead(buffers.data, buffers.bytes,
                                          {.loads = loads}, stream_.get());
                             }));
  }
  return entry->second;
}

double GpuTimer::ReadNodeUs(const Rotation& buffers) {
  auto [entry, missing] = read_node_us_.try_emplace(buffers.bytes, 1e9);
  if (!missing) return entry->second;
  const double expected_us = ReadColdUs(buffers);
  for (const int loads : kReadLoads) {
    entry->second = std::min(
        entry->second, NodeUs(expected_us, buffers.bytes, [&](int64_t node) {
          LaunchRead(buffers.At(node), buffers.bytes,
                     {.loads = loads, .overlap = true}, stream_.get());
        }));
  }
  return entry->second;
}

absl::StatusOr<Ceilings> MeasureCeilings(GpuTimer& timer) {
  constexpr int64_t kBytes = int64_t{2} << 30;
  constexpr int kRepeats = 7;
  NIBBLE_ASSIGN_OR_RETURN(const DeviceBuffer from, DeviceBuffer::Make(kBytes));
  NIBBLE_ASSIGN_OR_RETURN(const DeviceBuffer to, DeviceBuffer::Make(kBytes));
  cudaStream_t stream = timer.stream().get();
  LaunchFillBytes(from.data(), kBytes, 2, stream);
  Ceilings ceilings;
  const double copy_us = timer.ColdUs(
      [&] {
        NIBBLE_CUDA_CHECK(cudaMemcpyAsync(to.data(), from.data(), kBytes,
                                          cudaMemcpyDeviceToDevice, stream));
      },
      kRepeats);
  ceilings.copy_gbps = 2e-3 * static_cast<double>(kBytes) / copy_us;
  for (const int loads : kReadLoads) {
    const double us = timer.ColdUs(
        [&] { LaunchRead(from.data(), kBytes, {.loads = loads}, stream); },
        kRepeats);
    ceilings.read_gbps =
        std::max(ceilings.read_gbps, 1e-3 * static_cast<double>(kBytes) / us);
  }
  ceilings.empty_us = timer.ColdUs([&] { LaunchEmpty(stream); });
  return ceilings;
}

}  // namespace nibble::bench
