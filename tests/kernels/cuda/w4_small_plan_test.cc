// How launches of the W4A16 kernel for few rows are laid out: shared memory,
// and who reads which block.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/linear/w4a16_small.h"
#include "tests/kernels/cuda/w4_devices.h"

namespace nibble::kernels::cuda {
namespace {

using test::TestDevice;
using test::TestDevices;
using test::TestLayouts;

const DeviceInfo& Hopper() {
  static const DeviceInfo device = TestDevice(9, 0, 132, 227);
  return device;
}

W4Weights Weights(int64_t n, int64_t k, const W4Layout& layout = {}) {
  return {.n = n, .k = k, .layout = layout};
}

std::string Describe(const W4Weights& w, int64_t m, const SmallConfig& config,
                     const DeviceInfo& device) {
  return std::to_string(w.n) + "x" + std::to_string(w.k) +
         " m=" + std::to_string(m) + " " + SmallSpec(config).ToString() +
         " on " + device.ToString();
}

std::vector<SmallConfig> ConfigsOf(const SmallVariant& variant) {
  std::vector<SmallConfig> configs;
  for (const int cluster : kClusters) {
    if ((cluster > 1) != variant.cluster) continue;
    for (int lanes = 1; lanes <= 16; ++lanes) {
      configs.push_back({variant, lanes, cluster});
    }
  }
  return configs;
}

void CheckShared(const W4Weights& w, int64_t m, const SmallConfig& config,
                 const SmallLaunch& launch, const DeviceInfo& device) {
  const SmallParams& p = launch.params;
  const int64_t rows = std::min<int64_t>(m, config.variant.nt * 8);
  const int64_t warps = int64_t{launch.slices} * launch.lanes;
  int64_t end = 0;  // of what stands before
  if (config.variant.source == XSource::kRegisters ||
      config.variant.source == XSource::kShared) {
    EXPECT_EQ(p.zero_at % 16, 0);
    EXPECT_GE(p.cta_blocks * config.cluster, p.blocks_k);
    EXPECT_GE(p.zero_at, rows * StagedRowBytes(p.cta_blocks));
    EXPECT_GE(p.sums_at, p.zero_at + kZeroBytes);
    end = p.sums_at;
  }
  EXPECT_EQ(p.sums_at % 16, 0);
  if (w.layout.code == W4Code::kInt4 &&
      config.variant.source != XSource::kNowhere) {
    end += int64_t{p.cta_blocks} * w.layout.GroupsPerBlock() *
           config.variant.nt * 8 * 4;
  }
  EXPECT_EQ(p.done_at % 8, 0);
  EXPECT_GE(p.done_at, end);
  EXPECT_GE(p.ring_at, p.done_at + 8);
  EXPECT_EQ(p.ring_at % 128, 0);
  const int64_t rings_end =
      p.ring_at + warps * config.variant.stages * w.layout.BlockBytes();
  const int64_t tiles_of_cta = CeilDiv(p.epoch >> p.run_log2, config.cluster)
                               << p.run_log2;
  const int64_t partial_end =
      p.partial_at + tiles_of_cta * p.partial_tile_bytes;
  EXPECT_GE(p.partial_tile_bytes, p.slices * rows * kTileRows * 4);
  EXPECT_EQ(p.partial_at % 16, 0);
  if (p.partial_on_x) {
    EXPECT_EQ(config.variant.source, XSource::kRegisters);
    EXPECT_LE(partial_end, p.sums_at);
  } else {
    EXPECT_GE(p.partial_at, rings_end);
  }
  EXPECT_GE(launch.shared_bytes, std::max(rings_end, partial_end));
  EXPECT_LE(launch.shared_bytes, device.shared_memory_bytes);
}

void CheckGrid(const SmallConfig& config, const SmallLaunch& launch,
               const DeviceInfo& device) {
  const SmallParams& p = launch.params;
  EXPECT_EQ(launch.lanes, config.lanes);
  EXPECT_EQ(1 << p.cluster_log2, config.cluster);
  EXPECT_EQ(launch.ctas % config.cluster, 0);
  EXPECT_GE(launch.slices * config.cluster, p.slices);
  EXPECT_EQ((p.lane_rows - 1) * config.lanes + p.full_lanes, p.rows);
  EXPECT_GE(p.full_lanes, 1);
  EXPECT_LE(p.full_lanes, config.lanes);
  EXPECT_LE(launch.slices * launch.lanes * 32, kSmallMaxThreads);
  EXPECT_GE(launch.ctas, 1);
  EXPECT_LE(launch.ctas, device.multiprocessors);
  EXPECT_GE(p.runs_each, 1);
  EXPECT_LT(p.runs_extra, launch.ctas / config.cluster);
  EXPECT_GE(p.epoch, 1);
  EXPECT_EQ(p.epoch % launch.lanes, 0);
  EXPECT_EQ(p.epoch % (1 << p.run_log2), 0);
  // One bar.sync a slice, and id 0 is __syncthreads.
  if (launch.lanes > 1) {
    EXPECT_LT(launch.slices, 16);
  }
}

TEST(PlanSmall, LaysOutSharedMemoryWithinTheDevice) {
  int planned = 0;
  for (const DeviceInfo& device : TestDevices()) {
    for (const W4Layout& layout : TestLayouts()) {
      for (const int64_t n : {8, 64, 14'336}) {
        for (const int64_t k : {32, 576, 4096, 14'336, 65'536}) {
          const W4Weights w = Weights(n, k, layout);
          for (const SmallVariant& variant : kSmallVariants) {
            for (const int64_t m : {1, 7, 40}) {
              for (const SmallConfig& config : ConfigsOf(variant)) {
                for (const W4Epilogue epilogue :
                     {W4Epilogue::kStore, W4Epilogue::kSiluMul}) {
                  const auto launch = PlanSmall(w, m, epilogue, config, device);
                  if (!launch.has_value()) continue;
                  ++planned;
                  CheckShared(w, m, config, *launch, device);
                  CheckGrid(config, *launch, device);
                  ASSERT_FALSE(::testing::Test::HasFailure())
                      << Describe(w, m, config, device);
                }
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(planned, 10'000);
}

// The walk of a team's warps as the kernel does it: what they load, for which
// tiles they take that, and where those are added up.
class Walk final {
 public:
  Walk(const SmallLaunch& launch, int block_bytes)
      : launch_(launch), p_(launch.params), block_bytes_(block_bytes) {}

  int teams() const { return launch_.ctas >> p_.cluster_log2; }

  // Counts the blocks read by a team and the outputs' tiles that it adds up.
  void Run(int team, std::vector<int>& reads, std::vector<int>& sums) {
    team_ = team;
    own_tiles_ = (p_.runs_each + (team < p_.runs_extra ? 1 : 0)) << p_.run_log2;
    for (int rank = 0; rank < 1 << p_.cluster_log2; ++rank) {
      const int slice0 = rank * p_.slices >> p_.cluster_log2;
      const int end = (rank + 1) * p_.slices >> p_.cluster_log2;
      EXPECT_LE(end - slice0, launch_.slices);
      EXPECT_LT(slice0, end);
      for (int slice = slice0; slice < end; ++slice) {
        EXPECT_LE((slice - slice0 + 1) * p_.slice_blocks,
                  p_.cta_blocks + p_.slice_blocks - 1);
        for (int lane = 0; lane < launch_.lanes; ++lane) {
          RunWarp(lane, slice, reads);
        }
      }
      for (int begin = 0; begin < own_tiles_; begin += p_.epoch) {
        AddUp(rank, begin, std::min(p_.epoch, own_tiles_ - begin), sums);
      }
    }
  }

 private:
  int TileOf(int i) const {
    return ((team_ + (i >> p_.run_log2) * teams()) << p_.run_log2) +
           (i & ((1 << p_.run_log2) - 1));
  }

  void AddUp(int rank, int begin, int count, std::vector<int>& sums) const {
    const int cluster = 1 << p_.cluster_log2;
    int runs = 0;
    for (int run = rank; run < count >> p_.run_log2; run += cluster) {
      const int first = begin + (run << p_.run_log2);
      for (int i = 0; i < 1 << p_.run_log2; ++i) {
        // The tiles of a run are neighbours in W and in shared memory.
        EXPECT_EQ(TileOf(first + i), TileOf(first) + i);
        ++sums[static_cast<size_t>(TileOf(first + i))];
      }
      ++runs;
    }
    EXPECT_LE(
        (runs << p_.run_log2) * p_.partial_tile_bytes,
        (p_.partial_on_x ? p_.sums_at : launch_.shared_bytes) - p_.partial_at);
  }

  void RunWarp(int lane, int slice, std::vector<int>& reads) {
    const int block0 = slice * p_.slice_blocks;
    const int blocks = std::min(p_.slice_blocks, p_.blocks_k - block0);
    EXPECT_GE(blocks, 1);
    int64_t from =
        int64_t{p_.tile_bytes} * TileOf(lane) + int64_t{p_.slice_bytes} * slice;
    int load_tile = lane;
    for (int begin = 0; begin < own_tiles_; begin += p_.epoch) {
      const int count = std::min(p_.epoch, own_tiles_ - begin);
      for (int i = lane; i < count; i += launch_.lanes) {
        ASSERT_EQ(load_tile, begin + i);  // the ring brings what is wanted
        for (int b = 0; b < blocks; ++b) {
          const int64_t index =
              int64_t{TileOf(begin + i)} * p_.blocks_k + block0 + b;
          ASSERT_EQ(from, index * block_bytes_);
          ++reads.at(static_cast<size_t>(index));
          from += block_bytes_;
        }
        from += p_.hop_bytes[load_tile & 1] - int64_t{blocks} * block_bytes_;
        load_tile += launch_.lanes;
      }
    }
  }

  const SmallLaunch& launch_;
  const SmallParams& p_;
  const int block_bytes_;
  int team_ = 0;
  int own_tiles_ = 0;
};

bool AllAreOne(const std::vector<int>& counts) {
  return std::all_of(counts.begin(), counts.end(),
                     [](int count) { return count == 1; });
}

TEST(PlanSmall, EveryBlockIsReadOnceByWhoeverNeedsIt) {
  for (const int multiprocessors : {1, 3, 24, 132}) {
    const DeviceInfo device = TestDevice(9, 0, multiprocessors, 227);
    for (const int64_t n : {8, 64, 72, 320, 576, 1440, 2112, 6144, 14'336}) {
      for (const int64_t k : {96, 576, 1536, 3420, 4096, 8960, 14'336}) {
        const W4Weights w = Weights(n, k);
        for (const SmallVariant& variant :
             {SmallVariant{1, 2, XSource::kGlobal},
              SmallVariant{1, 2, XSource::kShared, true}}) {
          for (const SmallConfig& config : ConfigsOf(variant)) {
            for (const W4Epilogue epilogue :
                 {W4Epilogue::kStore, W4Epilogue::kSiluMul}) {
              const auto launch = PlanSmall(w, 8, epilogue, config, device);
              if (!launch.has_value()) continue;
              std::vector<int> reads(
                  static_cast<size_t>(Tiles(n) * BlocksPerTile(k)));
              std::vector<int> sums(static_cast<size_t>(Tiles(n)));
              Walk walk(*launch, w.layout.BlockBytes());
              for (int team = 0; team < walk.teams(); ++team) {
                walk.Run(team, reads, sums);
              }
              ASSERT_FALSE(::testing::Test::HasFailure())
                  << Describe(w, 8, config, device);
              ASSERT_TRUE(AllAreOne(reads)) << Describe(w, 8, config, device);
              ASSERT_TRUE(AllAreOne(sums)) << Describe(w, 8, config, device);
            }
          }
        }
      }
    }
  }
}

TEST(PlanSmall, RefusesWhatTheKernelCannotDo) {
  const auto plan = [](const W4Weights& w, int64_t m, const SmallConfig& config,
                       W4Epilogue epilogue = W4Epilogue::kStore) {
    return PlanSmall(w, m, epilogue, config, Hopper()).has_value();
  };
  const SmallConfig shared{{1, 2, XSource::kShared}, 1};
  const SmallConfig registers{{1, 2, XSource::kRegisters}, 1};
  EXPECT_TRUE(plan(Weights(4096, 4096), 8, shared));
  EXPECT_TRUE(plan(Weights(4096, 4096), 8, registers));
  // A slice of two blocks.
  EXPECT_FALSE(plan(Weights(4096, 4097), 8, registers));
  // More warps than a CTA of this kernel has.
  EXPECT_FALSE(plan(Weights(4096, 4096), 8, {shared.variant, 2}));
  EXPECT_TRUE(plan(Weights(4096, 1536), 8, {shared.variant, 2}));
  EXPECT_FALSE(plan(Weights(4096, 1536), 8, {shared.variant, 3}));
  EXPECT_FALSE(plan(Weights(4096, 1536), 8, {shared.variant, 0}));
  EXPECT_FALSE(plan(Weights(4096, 1536), 8,
                    {shared.variant, std::numeric_limits<int>::max()}));
  // Eight rows of x take 230 KB.
  EXPECT_FALSE(plan(Weights(4096, 14'336), 8, shared));
  EXPECT_TRUE(plan(Weights(4096, 14'336), 4, shared));
  // Clusters: of some sizes only, on GPUs that have them, each CTA with a slice
  // and x in its shared memory.
  const SmallVariant many{1, 2, XSource::kShared, true};
  EXPECT_TRUE(plan(Weights(4096, 4096), 8, {many, 4, 4}));
  EXPECT_FALSE(plan(Weights(4096, 4096), 8, {many, 5, 4}));
  EXPECT_FALSE(plan(Weights(4096, 4096), 8, {many, 1, 1}));
  EXPECT_FALSE(plan(Weights(4096, 4096), 8, {many, 1, 3}));
  EXPECT_FALSE(plan(Weights(4096, 4096), 8, {many, 1, 16}));
  EXPECT_FALSE(plan(Weights(4096, 4096), 8, {many, 1, 0}));
  EXPECT_FALSE(plan(Weights(4096, 4096), 8, {shared.variant, 1, 4}));
  EXPECT_TRUE(plan(Weights(4096, 1536), 8, {many, 1, 4}));
  EXPECT_FALSE(plan(Weights(4096, 1536), 8, {many, 1, 8}));
  EXPECT_TRUE(plan(Weights(4096, 14'336), 8, {many, 4, 2}));
  EXPECT_FALSE(PlanSmall(Weights(4096, 4096), 8, W4Epilogue::kStore,
                         {many, 4, 4}, TestDevice(8, 9, 132, 227))
                   .has_value());
  // A variant that is not compiled.
  EXPECT_FALSE(plan(Weights(4096, 4096), 8, {{4, 2, XSource::kRegisters}, 1}));
  // Gate and up are pairs of tiles.
  EXPECT_TRUE(plan(Weights(64, 4096), 1, shared, W4Epilogue::kSiluMul));
  EXPECT_FALSE(plan(Weights(48, 4096), 1, shared, W4Epilogue::kSiluMul));
  EXPECT_FALSE(plan(Weights(40, 4096), 1, shared, W4Epilogue::kSiluMul));
  // Nothing to do, or too much to count.
  EXPECT_FALSE(plan(Weights(64, 4096), 0, shared));
  EXPECT_FALSE(plan(Weights(0, 4096), 1, shared));
  EXPECT_FALSE(plan(Weights(64, 0), 1, shared));
  const SmallConfig nowhere{{1, 1, XSource::kNowhere}, 1};
  EXPECT_TRUE(plan(Weights(64, int64_t{1} << 28), 1, nowhere));
  EXPECT_FALSE(plan(Weights(64, (int64_t{1} << 28) + 1), 1, nowhere));
  EXPECT_TRUE(plan(Weights((int64_t{1} << 31) - 32, 64), 1, nowhere));
  EXPECT_FALSE(plan(Weights(int64_t{1} << 31, 64), 1, nowhere));
  // A device of which nothing is known.
  EXPECT_FALSE(PlanSmall(Weights(64, 64), 1, W4Epilogue::kStore, nowhere, {})
                   .has_value());
}

TEST(PlanSmall, TakesAsManyTeamsAsRunAtOnce) {
  const SmallConfig config{{1, 2, XSource::kShared, true}, 4, 4};
  const auto ctas = [&](int64_t n, int teams) {
    return PlanSmall(Weights(n, 4096), 1, W4Epilogue::kStore, config, Hopper(),
                     teams)
        ->ctas;
  };
  EXPECT_EQ(ctas(4096, std::numeric_limits<int>::max()), 132);
  EXPECT_EQ(ctas(4096, 30), 120);
  EXPECT_EQ(ctas(64, 30), 16);
}

TEST(SmallConfigs, AreAHandful) {
  for (const DeviceInfo& device : TestDevices()) {
    for (const int64_t k : {32, 576, 1536, 4096, 14'336}) {
      for (const int64_t m : {1, 8, 9, 33, 257}) {
        const auto configs =
            SmallConfigs(Weights(4096, k), m, W4Epilogue::kStore, device, true);
        EXPECT_GE(configs.size(), 1U);
        EXPECT_LE(configs.size(), 8U) << k << " " << m;
      }
    }
  }
}

TEST(SmallConfigs, TakeXFromSharedMemoryWhereItFits) {
  const auto first = [](int64_t m, int64_t k) {
    return SmallConfigs(Weights(4096, k), m, W4Epilogue::kStore, Hopper(),
                        false)
        .front()
        .variant;
  };
  EXPECT_EQ(first(1, 4096), (SmallVariant{1, 2, XSource::kRegisters}));
  EXPECT_EQ(first(1, 14'336), (SmallVariant{1, 2, XSource::kShared}));
  EXPECT_EQ(first(8, 14'336), (SmallVariant{1, 2, XSource::kGlobal}));
  EXPECT_EQ(first(16, 4096), (SmallVariant{2, 2, XSource::kRegisters}));
  // 32 rows do not fit; two passes of 16 do.
  EXPECT_EQ(first(32, 4096), (SmallVariant{2, 2, XSource::kRegisters}));
  EXPECT_EQ(first(32, 1536), (SmallVariant{4, 2, XSource::kShared}));
  EXPECT_EQ(first(64, 14'336), (SmallVariant{2, 2, XSource::kGlobal}));
}

TEST(SmallConfigs, BeginWithClustersWhereXIsMuch) {
  const auto first = [](int64_t m, int64_t k, bool clusters = true) {
    return SmallConfigs(Weights(4096, k), m, W4Epilogue::kStore, Hopper(),
                        clusters)
        .front();
  };
  EXPECT_EQ(first(8, 4096).cluster, 1);
  EXPECT_EQ(first(16, 4096).cluster, 2);
  EXPECT_EQ(first(16, 4096, false).cluster, 1);
  EXPECT_EQ(first(8, 14'336).cluster, 2);
  EXPECT_EQ(first(16, 14'336).cluster, 4);
  EXPECT_EQ(first(16, 14'336).variant,
            (SmallVariant{2, 2, XSource::kShared, true}));
}

TEST(SmallConfigs, ThereIsOneForAnyK) {
  for (const DeviceInfo& device : TestDevices()) {
    for (const W4Layout& layout : TestLayouts()) {
      for (int64_t k = 1; k <= int64_t{1} << 28; k = 2 * k + 1) {
        for (const int64_t m : {1, 8, 500}) {
          for (const W4Epilogue epilogue :
               {W4Epilogue::kStore, W4Epilogue::kSiluMul}) {
            EXPECT_FALSE(
                SmallConfigs(Weights(64, k, layout), m, epilogue, device, true)
                    .empty())
                << k << " " << m << " " << device.ToString();
          }
        }
      }
    }
  }
}

TEST(SmallSpec, IsReadBack) {
  for (const SmallVariant& variant : kSmallVariants) {
    const SmallConfig config{variant, 3, variant.cluster ? 4 : 1};
    const auto spec = LaunchSpec::Parse(SmallSpec(config).ToString());
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto read = ParseSmallSpec(*spec);
    ASSERT_TRUE(read.has_value()) << spec->ToString();
    EXPECT_EQ(*read, config);
  }
}

TEST(SmallSpec, RefusesVariantsThatAreNotCompiled) {
  const LaunchSpec good = SmallSpec({{1, 2, XSource::kShared}, 1});
  EXPECT_TRUE(ParseSmallSpec(good).has_value());
  LaunchSpec spec = good;
  spec.variant = "elsewhere";
  EXPECT_FALSE(ParseSmallSpec(spec).has_value());
  spec = good;
  spec.variant = "";
  EXPECT_FALSE(ParseSmallSpec(spec).has_value());
  spec = good;
  spec.stages = 9;
  EXPECT_FALSE(ParseSmallSpec(spec).has_value());
  spec = good;
  spec.tile_m = 12;
  EXPECT_FALSE(ParseSmallSpec(spec).has_value());
}

TEST(AsksEarly, NotWhereXIsMuch) {
  const auto early = [](int64_t m, int64_t n) {
    const SmallConfig config{{1, 2, XSource::kShared}, 1};
    const W4Weights w = Weights(n, 4096);
    const auto launch = PlanSmall(w, m, W4Epilogue::kStore, config, Hopper());
    return AsksEarly(*launch, w.layout, config);
  };
  EXPECT_TRUE(early(1, 4096));
  EXPECT_FALSE(early(8, 4096));
  EXPECT_TRUE(early(8, 28'672));
}

}  // namespace
}  // namespace nibble::kernels::cuda
