#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "kernels/cpu/cpu_count.h"

namespace nibble::kernels::cpu {
namespace {

TEST(ThreadPoolTest, RunsEachTaskOnce) {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t tasks : {0, 1, 2, 7, 1000}) {
      std::vector<int> times(tasks, 0);
      pool.ParallelFor(tasks, [&](int64_t i, int) { ++times[i]; });
      EXPECT_EQ(times, std::vector<int>(tasks, 1));
    }
  }
}

TEST(ThreadPoolTest, ManyShortLoopsSeeTheLastOnesWrites) {
  ThreadPool pool(4);
  std::vector<int64_t> values(64, 0);
  for (int loop = 0; loop < 3000; ++loop) {
    pool.ParallelFor(64, [&](int64_t i, int) { values[i] = values[i] + 1; });
  }
  EXPECT_EQ(values, std::vector<int64_t>(64, 3000));
}

TEST(ThreadPoolTest, AWorkerRunsOneTaskAtATime) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> busy(4);
  std::atomic<int> clashes = 0;
  pool.ParallelFor(2000, [&](int64_t, int worker) {
    if (busy[worker].fetch_add(1) != 0) ++clashes;
    busy[worker].fetch_sub(1);
  });
  EXPECT_EQ(clashes, 0);
}

TEST(ThreadPoolTest, AWorkerWalksItsOwnRangeThenHelps) {
  constexpr int64_t kTasks = 9;
  ThreadPool pool(2);
  std::vector<std::vector<int64_t>> tasks(2);  // of each worker, in its order
  std::atomic<int> inside = 0;
  std::atomic<int64_t> done = 0;
  pool.ParallelFor(kTasks, [&](int64_t i, int worker) {
    const bool first = tasks[worker].empty();
    tasks[worker].push_back(i);
    if (first) {
      ++inside;
      while (inside < 2) std::this_thread::yield();
    }
    // Worker 0 stays with its first task until all others are done.
    if (first && worker == 0) {
      while (done < kTasks - 1) std::this_thread::yield();
    }
    ++done;
  });
  EXPECT_EQ(tasks[0], (std::vector<int64_t>{0}));
  EXPECT_EQ(tasks[1], (std::vector<int64_t>{4, 5, 6, 7, 8, 1, 2, 3}));
}

TEST(ThreadPoolTest, WakesThreadsThatSleep) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    // Ends only when two threads are in the loop at once.
    std::atomic<int> inside = 0;
    pool.ParallelFor(2, [&](int64_t, int) {
      ++inside;
      while (inside < 2) std::this_thread::yield();
    });
    EXPECT_EQ(inside, 2);
  }
}

TEST(ThreadPoolTest, CallersOnDifferentThreadsTakeTurns) {
  ThreadPool pool(3);
  constexpr int kCallers = 4, kLoops = 300, kTasks = 20;
  std::vector<std::vector<int64_t>> sums(kCallers);
  std::vector<std::thread> callers;
  std::atomic<int> running = 0, overlaps = 0;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] {
      std::vector<int64_t>& mine = sums[caller];
      mine.assign(kTasks, 0);
      for (int loop = 0; loop < kLoops; ++loop) {
        std::atomic<int64_t> left = kTasks;
        pool.ParallelFor(kTasks, [&](int64_t i, int) {
          if (running.fetch_add(1) >= 3) ++overlaps;
          mine[i] += caller + 1;
          --left;
          running.fetch_sub(1);
        });
        if (left != 0) ++overlaps;  // returned too early
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (int caller = 0; caller < kCallers; ++caller) {
    EXPECT_EQ(sums[caller],
              std::vector<int64_t>(kTasks, int64_t{kLoops} * (caller + 1)));
  }
  EXPECT_EQ(overlaps, 0);
}

TEST(CpuCountTest, ReadsQuotas) {
  EXPECT_EQ(QuotaOfCpuMax("200000 100000\n"), 2);
  EXPECT_EQ(QuotaOfCpuMax("150000 100000"), 2);
  EXPECT_EQ(QuotaOfCpuMax("1000 100000"), 1);
  EXPECT_EQ(QuotaOfCpuMax("max 100000"), std::nullopt);
  EXPECT_EQ(QuotaOfCpuMax("-1\n 100000\n"), std::nullopt);
  EXPECT_EQ(QuotaOfCpuMax(""), std::nullopt);
  EXPECT_EQ(QuotaOfCpuMax("200000"), std::nullopt);
  EXPECT_EQ(QuotaOfCpuMax("200000 0"), std::nullopt);
  EXPECT_EQ(QuotaOfCpuMax("99999999999999999999 1"), std::nullopt);
}

TEST(CpuCountTest, UsesAtLeastOneAndNoMoreThanThereAre) {
  EXPECT_GE(UsableCpus(), 1);
  EXPECT_LE(UsableCpus(),
            static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace
}  // namespace nibble::kernels::cpu
