#include "kernels/cpu/thread_pool.h"

#include <algorithm>

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace nibble::kernels::cpu {
namespace {

// A pause takes 40 to 140 cycles on current x86, so this is 40 to 150 us: the
// longest serial stretch between two loops of a step, and not so long that an
// idle server shows up in top.
constexpr int kSpins = 4000;

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads)
    : ranges_(std::make_unique<Range[]>(std::max(threads, 1))) {
  NIBBLE_CHECK_GE(threads, 1);
  workers_.reserve(threads - 1);
  for (int worker = 1; worker < threads; ++worker) {
    workers_.emplace_back([this, worker] { WorkerMain(worker); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  wake_count_.fetch_add(1);
  wake_count_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(int64_t tasks, Task task) {
  if (tasks <= 0) return;
  std::lock_guard lock(loop_mutex_);
  if (tasks == 1 || workers_.empty()) {
    for (int64_t i = 0; i < tasks; ++i) task(i, 0);
    return;
  }
  // No helper is at work and none joins a closed loop, so these are ours.
  task_ = &task;
  for (int worker = 0; worker < threads(); ++worker) {
    ranges_[worker].next.store(tasks * worker / threads(),
                               std::memory_order_relaxed);
    ranges_[worker].end = tasks * (worker + 1) / threads();
  }
  const uint64_t loop =
      (state_.load(std::memory_order_relaxed) >> kLoopShift) + 1;
  state_.store(loop << kLoopShift | kOpen);
  if (sleepers_.load() > 0) WakeSleepers();

  RunTasks(0);

  // Helpers that have not come yet are not waited for: there is nothing left.
  state_.fetch_and(~kOpen, std::memory_order_acq_rel);
  for (int spins = 0;
       (state_.load(std::memory_order_acquire) & kHelpers) != 0;) {
    if (++spins < kSpins) {
      Pause();
    } else {
      std::this_thread::yield();  // a helper has lost its core
    }
  }
}

void ThreadPool::RunTasks(int worker) {
  for (int step = 0; step < threads(); ++step) {
    Range& range = ranges_[(worker + step) % threads()];
    // Looked at before it is taken from: nobody needs the line of a range that
    // is done for writing.
    while (range.next.load(std::memory_order_relaxed) < range.end) {
      const int64_t i = range.next.fetch_add(1, std::memory_order_relaxed);
      if (i < range.end) (*task_)(i, worker);
    }
  }
}

void ThreadPool::WakeSleepers() {
  wake_count_.fetch_add(1);
  wake_count_.notify_all();
}

void ThreadPool::WorkerMain(int worker) {
  uint64_t seen = 0;
  while ((seen = JoinNextLoop(seen)) != 0) {
    RunTasks(worker);
    state_.fetch_sub(1, std::memory_order_release);
  }
}

uint64_t ThreadPool::JoinNextLoop(uint64_t seen) {
  int spins = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    uint64_t state = state_.load(std::memory_order_acquire);
    const uint64_t loop = state >> kLoopShift;
    if ((state & kOpen) != 0 && loop != seen) {
      if (state_.compare_exchange_weak(state, state + 1,
                                       std::memory_order_acq_rel)) {
        return loop;
      }
      continue;
    }
    if (++spins < kSpins) {
      Pause();
      continue;
    }
    // Counted as a sleeper before the last look at the state: a caller that
    // opens a loop after that look sees the count and wakes us.
    const uint32_t wake = wake_count_.load();
    sleepers_.fetch_add(1);
    const uint64_t now = state_.load();
    if (!stop_.load() && ((now & kOpen) == 0 || now >> kLoopShift == seen)) {
      wake_count_.wait(wake);
    }
    sleepers_.fetch_sub(1);
    spins = 0;
  }
  return 0;
}

}  // namespace nibble::kernels::cpu
