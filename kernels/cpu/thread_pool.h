// The threads that share the work of one operation.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace nibble::kernels::cpu {

// A fixed number of threads that run loops of independent tasks. Shared by
// the backends of a process; thread-safe: loops of different callers take
// turns. Between loops the threads spin for some tens of microseconds, which
// spans the gap between two operations of a step, then sleep.
class ThreadPool final {
 public:
  // `threads` >= 1 take part in a loop, the caller among them.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(i, worker) for each i in [0, tasks), in any order, and returns
  // when all have returned. Each worker begins with a range of its own, which
  // it walks upwards, so that neighbouring tasks are usually one stream of
  // memory; then it helps the others. `worker` in [0, threads()) is held by one
  // running task at a time: it indexes scratch memory. A task must not call
  // ParallelFor.
  using Task = absl::FunctionRef<void(int64_t index, int worker)>;
  void ParallelFor(int64_t tasks, Task task);

 private:
  // state_ = loop number << 16 | kOpen while the loop takes helpers | the
  // number of helpers at work.
  static constexpr uint64_t kOpen = uint64_t{1} << 15;
  static constexpr uint64_t kHelpers = kOpen - 1;
  static constexpr int kLoopShift = 16;

  // The tasks of a loop that one worker begins with; on a cache line of its
  // own. Whoever takes `next` runs it.
  struct alignas(64) Range {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  void WorkerMain(int worker);
  // Waits for an open loop other than number `seen` and joins it; returns its
  // number, or 0 when the pool is being destroyed.
  uint64_t JoinNextLoop(uint64_t seen);
  void RunTasks(int worker);
  void WakeSleepers();

  std::mutex loop_mutex_;  // held by the caller for the whole of its loop
  const Task* task_ = nullptr;
  const std::unique_ptr<Range[]> ranges_;  // [threads()]
  // Each on a cache line of its own: all threads hammer them.
  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<uint32_t> wake_count_{0};
  std::atomic<int32_t> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace nibble::kernels::cpu
