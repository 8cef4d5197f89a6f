// The ways to launch W4A16, asked for without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/linear/tune.h"
#include "kernels/cuda/linear/w4a16.h"
#include "tests/kernels/cuda/w4_devices.h"

namespace nibble::kernels::cuda {
namespace {

using test::TestDevices;
using test::TestLayouts;

// f(weights, epilogue, device) for every layout on every device in shapes from
// one tile to those of great models.
template <typename F>
void ForAllProblems(const F& f) {
  for (const DeviceInfo& device : TestDevices()) {
    for (const W4Layout& layout : TestLayouts()) {
      for (const int64_t n : {8, 64, 576, 4096, 14'336, 262'144}) {
        for (const int64_t k : {32, 576, 3420, 4096, 28'672, 65'536}) {
          const W4Weights w{.n = n, .k = k, .layout = layout};
          f(w, W4Epilogue::kStore, device);
          f(w, W4Epilogue::kAdd, device);
          if (n % (2 * kTileRows) == 0) f(w, W4Epilogue::kSiluMul, device);
        }
      }
    }
  }
}

std::string Describe(const W4Weights& w, int64_t m, W4Epilogue epilogue,
                     const DeviceInfo& device) {
  return device.ToString() + " " + std::to_string(w.n) + "x" +
         std::to_string(w.k) + " m=" + std::to_string(m) + " scale " +
         std::to_string(static_cast<int>(w.layout.scale)) + " group " +
         std::to_string(w.layout.group) + " epilogue " +
         std::to_string(static_cast<int>(epilogue));
}

TEST(W4Candidates, AreFeasibleDistinctAndPrintable) {
  ForAllProblems(
      [](const W4Weights& w, W4Epilogue epilogue, const DeviceInfo& device) {
        for (const int64_t m : {1, 2, 8, 9, 33, 64, 65, 257, 4096, 100'000}) {
          const std::vector<LaunchSpec> specs =
              W4Candidates(w, m, epilogue, device);
          ASSERT_FALSE(specs.empty()) << Describe(w, m, epilogue, device);
          std::set<std::string> texts;
          for (const LaunchSpec& spec : specs) {
            const std::string text = spec.ToString();
            ASSERT_TRUE(W4Feasible(w, m, epilogue, spec, device))
                << Describe(w, m, epilogue, device) << " " << text;
            ASSERT_TRUE(texts.insert(text).second)
                << Describe(w, m, epilogue, device) << " " << text;
            const auto parsed = LaunchSpec::Parse(text);
            ASSERT_TRUE(parsed.ok()) << parsed.status();
            ASSERT_EQ(*parsed, spec) << text;
          }
        }
      });
}

TEST(W4Candidates, SomeOneRunsAllOfEachBucket) {
  // What Tune asks of them.
  ForAllProblems([](const W4Weights& w, W4Epilogue epilogue,
                    const DeviceInfo& device) {
    int64_t first = 1;
    for (const int64_t last : BucketRows(8192)) {
      bool found = false;
      for (const LaunchSpec& spec : W4Candidates(w, last, epilogue, device)) {
        found = found || W4Feasible(w, first, epilogue, spec, device);
      }
      ASSERT_TRUE(found) << Describe(w, first, epilogue, device) << " .. "
                         << last;
      first = last + 1;
    }
  });
}

TEST(W4Feasible, RefusesSpecsOfNoKernel) {
  const W4Weights w{.n = 4096, .k = 4096, .layout = W4Layout()};
  for (const DeviceInfo& device : TestDevices()) {
    const LaunchSpec good =
        W4Candidates(w, 1, W4Epilogue::kStore, device).front();
    LaunchSpec spec = good;
    spec.kernel = "gemv_q4_0";
    EXPECT_FALSE(W4Feasible(w, 1, W4Epilogue::kStore, spec, device));
    spec = good;
    spec.path = LinearPath::kWide;
    EXPECT_FALSE(W4Feasible(w, 1, W4Epilogue::kStore, spec, device));
    spec = good;
    spec.tile_m = 1 << 20;
    EXPECT_FALSE(W4Feasible(w, 1, W4Epilogue::kStore, spec, device));
    spec = good;
    spec.stages = 1 << 20;
    EXPECT_FALSE(W4Feasible(w, 1, W4Epilogue::kStore, spec, device));
    spec = good;
    spec.split_k = 1 << 20;
    EXPECT_FALSE(W4Feasible(w, 1, W4Epilogue::kStore, spec, device));
    EXPECT_FALSE(W4Feasible(w, 1, W4Epilogue::kStore, LaunchSpec(), device));
  }
}

TEST(W4ScratchBytes, GrowsWithRows) {
  EXPECT_EQ(W4ScratchBytes(0, 4096), 0);
  int64_t before = 0;
  for (const int64_t m : BucketRows(1 << 20)) {
    const int64_t bytes = W4ScratchBytes(m, 16'384);
    EXPECT_GE(bytes, before) << m;
    before = bytes;
  }
}

TEST(W4Layout, SummationOrderCoversEveryBlockOnce) {
  for (int64_t k = 1; k <= 70'000; k += 61) {
    const int64_t blocks = BlocksPerTile(k);
    EXPECT_GE(blocks * kBlockK, k);
    EXPECT_LT((blocks - 1) * kBlockK, k);
    EXPECT_LE(Slices(k), kMaxSlices);
    // The last slice has a block, and none is left over.
    EXPECT_LT(int64_t{Slices(k) - 1} * SliceBlocks(k), blocks) << k;
    EXPECT_GE(int64_t{Slices(k)} * SliceBlocks(k), blocks) << k;
  }
}

TEST(W4Layout, SlicesFillTheirSharers) {
  const auto slices = [](int64_t k) {
    return std::pair(Slices(k), SliceBlocks(k));
  };
  EXPECT_EQ(slices(96), std::pair(1, 1));
  EXPECT_EQ(slices(1536), std::pair(6, 1));
  EXPECT_EQ(slices(4096), std::pair(16, 1));
  EXPECT_EQ(slices(5120), std::pair(10, 2));
  EXPECT_EQ(slices(8192), std::pair(16, 2));
  EXPECT_EQ(slices(8960), std::pair(12, 3));
  EXPECT_EQ(slices(14'336), std::pair(8, 7));
  EXPECT_EQ(slices(28'672), std::pair(16, 7));
  for (int64_t k = 1; k <= 70'000; k += 61) {
    EXPECT_GE(Slices(k), std::min<int64_t>(BlocksPerTile(k), kMinSlices)) << k;
  }
}

TEST(W4Layout, BlocksKeepTheirAlignment) {
  for (const W4Layout& layout : TestLayouts()) {
    EXPECT_EQ(layout.BlockBytes() % 16, 0);
    EXPECT_EQ(layout.GroupsPerBlock() * layout.group, kBlockK);
    EXPECT_EQ(PackedBytes(layout, 33, 257), 3 * 2 * layout.BlockBytes());
  }
}

TEST(W4Layout, GateAndUpAlternateByTile) {
  EXPECT_EQ(InterleavedRow(0, false), 0);
  EXPECT_EQ(InterleavedRow(0, true), 16);
  EXPECT_EQ(InterleavedRow(15, false), 15);
  EXPECT_EQ(InterleavedRow(16, false), 32);
  EXPECT_EQ(InterleavedRow(17, true), 49);
}

}  // namespace
}  // namespace nibble::kernels::cuda
