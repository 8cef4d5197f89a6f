#include "kernels/cuda/linear/plan_cache.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/random.h"

namespace nibble::kernels::cuda {
namespace {

namespace fs = std::filesystem;

PlanKey Key(int64_t n) {
  return {.gpu = "NVIDIA H200",
          .cuda = "13.0/13.0",
          .build = "0123abcd",
          .layout = "int4-min-g128",
          .x_dtype = "bf16",
          .epilogue = "store",
          .n = n,
          .k = 4096,
          .max_rows = 512};
}

LinearPlan Plan(const std::string& kernel) {
  return LinearPlan::Parse("1..8 narrow:" + kernel +
                           " tile=8x16 stages=4 (12.5 us) | 9.. narrow:mid")
      .value();
}

// A folder of its own for each test, gone afterwards.
class PlanCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              ("plan_cache_" + std::to_string(getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
    path_ = folder_ / "plans.txt";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Read() const {
    std::ifstream file(path_, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  void Write(const std::string& text) const {
    std::ofstream(path_, std::ios::binary) << text;
  }
  // Names in the folder that are not the file's or its lock's.
  int StrayFiles() const {
    int count = 0;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      const std::string name = entry.path().filename();
      if (name != "plans.txt" && name != "plans.txt.lock") ++count;
    }
    return count;
  }

  fs::path folder_;
  fs::path path_;
};

TEST(PlanKey, PrintsAsOneLine) {
  EXPECT_EQ(Key(14336).ToString(),
            "gpu=NVIDIA H200 cuda=13.0/13.0 build=0123abcd n=14336 k=4096 "
            "layout=int4-min-g128 x=bf16 epilogue=store max_rows=512");
  PlanKey hostile = Key(1);
  hostile.gpu = "a\nb => c => d\xff";
  EXPECT_EQ(hostile.ToString().find('\n'), std::string::npos);
  EXPECT_EQ(hostile.ToString().find(" => "), std::string::npos);
}

TEST_F(PlanCacheTest, RemembersWithoutAFile) {
  PlanCache cache("");
  EXPECT_FALSE(cache.Find(Key(1)).has_value());
  cache.Store(Key(1), Plan("a"));
  ASSERT_TRUE(cache.Find(Key(1)).has_value());
  EXPECT_EQ(cache.Find(Key(1))->ToString(), Plan("a").ToString());
  EXPECT_FALSE(cache.Find(Key(2)).has_value());
  cache.Store(Key(1), Plan("b"));
  EXPECT_EQ(cache.Find(Key(1))->ToString(), Plan("b").ToString());
}

TEST_F(PlanCacheTest, IsReadByTheNextProcess) {
  {
    PlanCache cache(path_);
    cache.Store(Key(1), Plan("a"));
    cache.Store(Key(2), Plan("b"));
  }
  const PlanCache cache(path_);
  ASSERT_TRUE(cache.Find(Key(1)) && cache.Find(Key(2)));
  EXPECT_EQ(cache.Find(Key(1))->ToString(), Plan("a").ToString());
  EXPECT_EQ(cache.Find(Key(2))->ToString(), Plan("b").ToString());
  EXPECT_EQ(StrayFiles(), 0);
}

TEST_F(PlanCacheTest, EveryPartOfTheKeyCounts) {
  PlanCache cache("");
  cache.Store(Key(1), Plan("a"));
  const auto differs = [&](auto change) {
    PlanKey key = Key(1);
    change(key);
    return !cache.Find(key).has_value();
  };
  EXPECT_TRUE(differs([](PlanKey& key) { key.gpu = "NVIDIA H100"; }));
  EXPECT_TRUE(differs([](PlanKey& key) { key.cuda = "13.1/13.0"; }));
  EXPECT_TRUE(differs([](PlanKey& key) { key.build = "x"; }));
  EXPECT_TRUE(differs([](PlanKey& key) { key.layout = "int4-min-g64"; }));
  EXPECT_TRUE(differs([](PlanKey& key) { key.x_dtype = "f16"; }));
  EXPECT_TRUE(differs([](PlanKey& key) { key.epilogue = "silu_mul"; }));
  EXPECT_TRUE(differs([](PlanKey& key) { key.k = 1; }));
  EXPECT_TRUE(differs([](PlanKey& key) { key.max_rows = 1; }));
}

TEST_F(PlanCacheTest, LeavesOutBrokenLines) {
  {
    PlanCache cache(path_);
    cache.Store(Key(1), Plan("a"));
    cache.Store(Key(2), Plan("b"));
  }
  const std::string whole = Read();
  // Noise around the good lines, and a last line cut short.
  Write("garbage\n\n => 1.. narrow:a\n" + Key(3).ToString() + " => 1..\n" +
        Key(4).ToString() + " => 2.. narrow:a\n" + std::string("\0\xff\n", 3) +
        whole + Key(5).ToString() + " => 1..8 narr");
  PlanCache cache(path_);
  EXPECT_TRUE(cache.Find(Key(1)) && cache.Find(Key(2)));
  for (int64_t n = 3; n <= 5; ++n) EXPECT_FALSE(cache.Find(Key(n))) << n;
  cache.Store(Key(6), Plan("c"));
  EXPECT_EQ(Read().find("garbage"), std::string::npos);
  EXPECT_TRUE(PlanCache(path_).Find(Key(1)));
  EXPECT_TRUE(PlanCache(path_).Find(Key(6)));
}

TEST_F(PlanCacheTest, SurvivesRandomBytes) {
  PlanCache(path_).Store(Key(1), Plan("a"));
  const std::string whole = Read();
  test::Random random(1);
  for (int round = 0; round < 200; ++round) {
    std::string broken = whole;
    for (int i = 0; i < 3; ++i) {
      broken[static_cast<size_t>(
          random.Int(0, static_cast<int64_t>(broken.size()) - 1))] =
          static_cast<char>(random.Bits());
    }
    Write(broken);
    PlanCache cache(path_);
    if (const auto plan = cache.Find(Key(1))) plan->ForRows(1);
  }
}

TEST_F(PlanCacheTest, IgnoresAFileThatIsTooLarge) {
  Write(Key(1).ToString() + " => 1.. narrow:a\n" +
        std::string((16 << 20) + 1, '#'));
  EXPECT_FALSE(PlanCache(path_).Find(Key(1)));
}

TEST_F(PlanCacheTest, GoesOnWithoutAFileItCannotUse) {
  for (const fs::path& path :
       {folder_, folder_ / "missing" / "plans.txt", fs::path("/dev/null/x")}) {
    PlanCache cache(path);
    cache.Store(Key(1), Plan("a"));
    EXPECT_TRUE(cache.Find(Key(1))) << path;
  }
  EXPECT_FALSE(fs::exists(folder_ / "missing"));
}

TEST_F(PlanCacheTest, AddsToWhatAnotherWrote) {
  PlanCache first(path_);
  PlanCache second(path_);
  first.Store(Key(1), Plan("a"));
  second.Store(Key(2), Plan("b"));
  first.Store(Key(3), Plan("c"));
  const PlanCache third(path_);
  for (int64_t n = 1; n <= 3; ++n) EXPECT_TRUE(third.Find(Key(n))) << n;
}

TEST_F(PlanCacheTest, LosesNothingAmongThreads) {
  PlanCache shared(path_);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&shared, this, t] {
        PlanCache own(path_);
        for (int64_t i = 0; i < 10; ++i) {
          PlanCache& cache = i % 2 == 0 ? shared : own;
          cache.Store(Key(t * 100 + i), Plan("a"));
          EXPECT_TRUE(cache.Find(Key(t * 100 + i)));
        }
      });
    }
  }
  const PlanCache cache(path_);
  for (int t = 0; t < 4; ++t) {
    for (int64_t i = 0; i < 10; ++i) {
      EXPECT_TRUE(cache.Find(Key(t * 100 + i))) << t << " " << i;
    }
  }
  EXPECT_EQ(StrayFiles(), 0);
}

TEST_F(PlanCacheTest, LosesNothingAmongProcesses) {
  constexpr int kProcesses = 4;
  constexpr int64_t kPlans = 10;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      PlanCache cache(path_);
      for (int64_t i = 0; i < kPlans; ++i) {
        cache.Store(Key(p * 100 + i), Plan("a"));
      }
      _exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  const PlanCache cache(path_);
  for (int p = 0; p < kProcesses; ++p) {
    for (int64_t i = 0; i < kPlans; ++i) {
      EXPECT_TRUE(cache.Find(Key(p * 100 + i))) << p << " " << i;
    }
  }
  EXPECT_EQ(StrayFiles(), 0);
}

}  // namespace
}  // namespace nibble::kernels::cuda
