// What the host decides about launches of the W8A8 kernels, and the layout of
// their weights.
#include "kernels/cuda/linear/w8a8_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/checked_math.h"
#include "kernels/cuda/linear/w8a8_pack.h"
#include "tests/kernels/cuda/w4_devices.h"

namespace nibble::kernels::cuda {
namespace {

DeviceInfo Hopper() { return test::TestDevice(9, 0, 132, 227); }

constexpr int64_t kRows[] = {1,   2,   7,   16,    33,     64,       65,
                             128, 200, 257, 1'000, 20'000, 1'000'000};
constexpr int64_t kColumns[] = {1, 31, 32, 576, 2'112, 13'653, 28'672};

// Every config of a kind, worth trying or not.
std::vector<W8Config> AllConfigs(W8Kind kind) {
  std::vector<W8Config> configs;
  for (const W8Tile& tile : kW8MmaTiles) configs.push_back({tile, 1});
  for (const W8Tile& tile : W8Tiles(kind)) {
    for (int cluster = 1; cluster <= tile.MaxCluster(); cluster *= 2) {
      configs.push_back({tile, cluster});
    }
  }
  return configs;
}

TEST(W8Layout, RowsOfAGroupChangeTheirOrderAndNoMore) {
  for (int64_t group = 0; group < 5; ++group) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < kW8RowGroup; ++i) {
      const int64_t row = group * kW8RowGroup + i;
      const int64_t packed = W8PackedRow(row);
      EXPECT_EQ(packed / kW8RowGroup, group);
      EXPECT_EQ(W8PackedRow(packed), row);
      seen.insert(packed);
    }
    EXPECT_EQ(seen.size(), static_cast<size_t>(kW8RowGroup));
  }
}

TEST(W8Layout, AThreadHasEightNeighbours) {
  // wgmma gives lane t of four columns 8 q + 2 t and 8 q + 2 t + 1.
  for (int64_t t = 0; t < 4; ++t) {
    for (int64_t q = 0; q < 4; ++q) {
      for (int64_t pair = 0; pair < 2; ++pair) {
        EXPECT_EQ(W8PackedRow(8 * q + 2 * t + pair), 8 * t + 2 * q + pair);
      }
    }
  }
}

TEST(PackW8, PutsRowsInTheirPlacesAndSumsThem) {
  constexpr int64_t kN = 45, kK = 37;
  std::vector<uint8_t> codes(kN * kK);
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<uint8_t>(i * 7 + i / 255);
  }
  const PackedW8 packed = PackW8(W8Kind::kInt8, codes, kN, kK);
  EXPECT_EQ(packed.pitch, 48);
  ASSERT_EQ(packed.codes.size(), size_t{64 * 48});
  ASSERT_EQ(packed.sums.size(), size_t{kN});
  for (int64_t row = 0; row < 64; ++row) {
    int32_t sum = 0;
    for (int64_t k = 0; k < packed.pitch; ++k) {
      const auto code = static_cast<uint8_t>(
          packed.codes[W8PackedRow(row) * packed.pitch + k]);
      ASSERT_EQ(code, row < kN && k < kK ? codes[row * kK + k] : 0)
          << row << " " << k;
      sum += static_cast<int8_t>(code);
    }
    if (row < kN) {
      EXPECT_EQ(packed.sums[row], sum) << row;
    }
  }
  EXPECT_TRUE(PackW8(W8Kind::kE4m3, codes, kN, kK).sums.empty());
}

TEST(PackW8Groups, TurnsScalesAndSumsCodesTimesThem) {
  constexpr int64_t kN = 33, kK = 200;  // the second group is short
  std::vector<uint8_t> codes(kN * kK);
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<uint8_t>(i * 7 + i / 255);
  }
  std::vector<float> scales(kN * 2);
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = 0.25f * static_cast<float>(i + 1);
  }
  const PackedW8Groups packed = PackW8Groups(codes, scales, kN, kK);
  ASSERT_EQ(packed.pitch, 64);
  ASSERT_EQ(packed.scales.size(), size_t{2 * 64});
  ASSERT_EQ(packed.scaled_sums.size(), size_t{kN});
  for (int64_t row = 0; row < packed.pitch; ++row) {
    for (int64_t group = 0; group < 2; ++group) {
      EXPECT_EQ(packed.scales[group * packed.pitch + row],
                row < kN ? scales[row * 2 + group] : 0)
          << row << " " << group;
    }
  }
  for (int64_t row = 0; row < kN; ++row) {
    float sum = 0;  // exact: multiples of 1/4 below 2^22
    for (int64_t k = 0; k < kK; ++k) {
      sum +=
          static_cast<int8_t>(codes[row * kK + k]) * scales[row * 2 + k / 128];
    }
    EXPECT_EQ(packed.scaled_sums[row], sum) << row;
  }
}

TEST(InterleaveGateUp, TakesUnitsOfGateAndUpInTurn) {
  constexpr int64_t kF = 3, kWidth = 2, kUnit = 2;
  const std::vector<int> rows = {1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16};
  EXPECT_EQ(InterleaveGateUp<int>(rows, kF, kWidth, kUnit),
            (std::vector<int>{1, 2, 3, 4, 11, 12, 13, 14,  //
                              5, 6, 0, 0, 15, 16, 0, 0}));
  EXPECT_EQ(InterleaveGateUp<int>(rows, kF, kWidth, 1),
            (std::vector<int>{1, 2, 11, 12, 3, 4, 13, 14, 5, 6, 15, 16}));
  EXPECT_EQ(W8GateUpRows(1), 256);
  EXPECT_EQ(W8GateUpRows(128), 256);
  EXPECT_EQ(W8GateUpRows(129), 512);
}

TEST(W8SiluMulSpec, PrintsAndParsesEveryConfig) {
  for (const W8Kind kind : kW8Kinds) {
    for (const W8Tile& tile : kW8SiluMulTiles) {
      for (int cluster = 1; cluster <= tile.MaxCluster(); cluster *= 2) {
        const LaunchSpec spec = W8SiluMulSpec(kind, {tile, cluster});
        const auto read = LaunchSpec::Parse(spec.ToString());
        ASSERT_TRUE(read.ok()) << read.status();
        const auto back = ParseW8SiluMulSpec(kind, *read);
        ASSERT_TRUE(back.has_value()) << spec.ToString();
        EXPECT_EQ(back->tile, tile);
        EXPECT_EQ(back->cluster, cluster);
        EXPECT_FALSE(ParseW8Spec(kind, spec).has_value()) << spec.ToString();
      }
    }
  }
  EXPECT_EQ(
      W8SiluMulSpec(W8Kind::kE4m3Block, {kW8SiluMulTiles[0], 2}).ToString(),
      "wide:w8a8_e4m3_block_silu_mul tile=128x256 variant=rows_c2");
}

TEST(W8SiluMulCandidates, AreFeasibleWhereTheyAreCompiled) {
  for (const W8Kind kind : kW8Kinds) {
    for (const int64_t m : kRows) {
      const W8Problem problem{kind, m, W8GateUpRows(14'336), 4'096};
      const auto specs = W8SiluMulCandidates(problem, Hopper());
      EXPECT_EQ(specs.empty(), !W8WgmmaIsCompiled()) << problem.ToString();
      for (const LaunchSpec& spec : specs) {
        EXPECT_TRUE(W8SiluMulFeasible(problem, spec, Hopper()));
        EXPECT_FALSE(W8Feasible(problem, spec, Hopper()));
      }
    }
  }
}

TEST(W8Spec, PrintsAndParsesEveryConfig) {
  std::set<std::string> texts;
  for (const W8Kind kind : kW8Kinds) {
    for (const W8Config& config : AllConfigs(kind)) {
      const LaunchSpec spec = W8Spec(kind, config);
      EXPECT_TRUE(texts.insert(spec.ToString()).second) << spec.ToString();
      const auto read = LaunchSpec::Parse(spec.ToString());
      ASSERT_TRUE(read.ok()) << read.status();
      const auto back = ParseW8Spec(kind, *read);
      ASSERT_TRUE(back.has_value()) << spec.ToString();
      EXPECT_EQ(back->tile, config.tile);
      EXPECT_EQ(back->cluster, config.cluster);
    }
  }
  EXPECT_TRUE(texts.count("wide:w8a8_int8 tile=128x160 variant=pingpong_c2"));
}

TEST(W8Spec, OfAnotherKindOrTileIsRefused) {
  const W8Config config{kW8PlainTiles[1], 1};
  LaunchSpec spec = W8Spec(W8Kind::kInt8, config);
  EXPECT_FALSE(ParseW8Spec(W8Kind::kE4m3, spec).has_value());
  spec.tile_n = 200;
  EXPECT_FALSE(ParseW8Spec(W8Kind::kInt8, spec).has_value());
  spec = W8Spec(W8Kind::kInt8, {config.tile, 4});
  EXPECT_FALSE(ParseW8Spec(W8Kind::kInt8, spec).has_value());
}

TEST(PlanW8, TilesForHopperNeedIt) {
  for (const DeviceInfo& device : test::TestDevices()) {
    const bool hopper = device.compute_major == 9;
    EXPECT_EQ(W8Configs({W8Kind::kInt8, 16, 4'096, 4'096}, device,
                        W8Tiles(W8Kind::kInt8))
                  .empty(),
              !hopper)
        << device.ToString();
  }
}

bool HasType(const DeviceInfo& device, W8Kind kind) {
  return IsInt8(kind) || device.compute_major > 8 || device.compute_minor == 9;
}

TEST(PlanW8, MmaTilesFitEveryDeviceThatHasTheType) {
  for (const DeviceInfo& device : test::TestDevices()) {
    for (const W8Kind kind : kW8Kinds) {
      for (const int64_t m : kRows) {
        for (const int64_t n : kColumns) {
          const W8Problem problem{kind, m, n, 4'304};
          const auto configs = W8Configs(problem, device, kW8MmaTiles);
          EXPECT_EQ(configs.empty(), !HasType(device, kind))
              << problem.ToString() << " on " << device.ToString();
          for (const W8Config& config : configs) {
            const auto launch = PlanW8(problem, config, device);
            ASSERT_TRUE(launch.has_value()) << problem.ToString();
            EXPECT_EQ(launch->ctas,
                      DivideUp(m, int64_t{config.tile.rows}) *
                          DivideUp(n, int64_t{config.tile.columns}));
            EXPECT_GE(launch->threads, 32 * config.tile.Warps());
            EXPECT_LE(launch->shared_bytes, device.shared_memory_bytes);
            EXPECT_EQ(launch->params.k_blocks, 34);
          }
        }
      }
    }
  }
}

TEST(PlanW8, GuessesLargeTilesForManyRowsAndFlatOnesForFew) {
  for (const DeviceInfo& device : test::TestDevices()) {
    const auto first = [&](int64_t m) {
      return W8Configs({W8Kind::kInt8, m, 14'336, 4'096}, device, kW8MmaTiles)
          .front()
          .tile;
    };
    EXPECT_EQ(first(8'192).rows, 128) << device.ToString();
    EXPECT_EQ(first(1).rows, 16) << device.ToString();
  }
}

// Warps' parts make up the tile, and scales of steps are copied by 16 bytes.
TEST(W8MmaTile, IsSharedByItsWarps) {
  for (const W8Tile& tile : kW8MmaTiles) {
    EXPECT_EQ(tile.Warps() * tile.PartRows() * tile.PartColumns(),
              tile.rows * tile.columns);
    EXPECT_EQ(tile.PartRows() % 16, 0);
    for (const W8Kind kind : kW8Kinds) {
      const W8Shared shared = LayOutW8Mma(kind, tile);
      EXPECT_GE(shared.stages, 2);
      EXPECT_EQ(shared.stage_bytes, (tile.rows + tile.columns) * kW8BlockK);
      EXPECT_EQ(shared.scales_at % 16, 0);
      EXPECT_EQ(shared.vectors_at % 16, 0);
    }
  }
}

TEST(CheckW8Device, NamesTheKindAndTheCapability) {
  for (const DeviceInfo& device : test::TestDevices()) {
    for (const W8Kind kind : kW8Kinds) {
      const absl::Status status = CheckW8Device(kind, device);
      const bool possible = HasType(device, kind);
      EXPECT_EQ(status.ok(), possible && W8MmaIsCompiled())
          << device.ToString() << " " << W8KindName(kind);
      if (possible) continue;
      EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
      const std::string capability = std::to_string(device.compute_major) +
                                     "." + std::to_string(device.compute_minor);
      for (const std::string& part :
           {std::string(W8KindName(kind)) + " ", std::string("8.9"),
            "compute " + capability}) {
        EXPECT_NE(status.message().find(part), std::string::npos)
            << status << " lacks " << part;
      }
    }
  }
}

TEST(PlanW8, RefusesSizesOutOfRange) {
  const W8Config config{kW8PlainTiles[0], 1};
  const auto fits = [&](W8Kind kind, int64_t m, int64_t n, int64_t k) {
    return PlanW8({kind, m, n, k}, config, Hopper()).has_value();
  };
  EXPECT_TRUE(fits(W8Kind::kInt8, 1, 1, kW8MaxInt8K));
  EXPECT_FALSE(fits(W8Kind::kInt8, 1, 1, kW8MaxInt8K + 1));
  EXPECT_TRUE(fits(W8Kind::kE4m3Fast, 1, 1, kW8MaxInt8K + 1));
  EXPECT_FALSE(fits(W8Kind::kInt8, 0, 1, 1));
  EXPECT_FALSE(fits(W8Kind::kInt8, 1, 0, 1));
  EXPECT_FALSE(fits(W8Kind::kInt8, 1, 1, 0));
  EXPECT_FALSE(fits(W8Kind::kInt8, int64_t{1} << 31, 1, 1));
  EXPECT_FALSE(fits(W8Kind::kInt8, 1, int64_t{1} << 31, 1));
  // More tiles than a CTA counts.
  EXPECT_FALSE(fits(W8Kind::kInt8, 2'000'000'000, 2'000'000'000, 1));
}

TEST(PlanW8, FitsForEveryProblem) {
  const DeviceInfo device = Hopper();
  for (const W8Kind kind : kW8Kinds) {
    for (const int64_t m : kRows) {
      for (const int64_t n : kColumns) {
        const W8Problem problem{kind, m, n, 4'304};
        const auto configs = W8Configs(problem, device, W8Tiles(kind));
        EXPECT_FALSE(configs.empty()) << problem.ToString();
        for (const W8Config& config : configs) {
          const auto launch = PlanW8(problem, config, device);
          ASSERT_TRUE(launch.has_value()) << problem.ToString();
          EXPECT_GE(launch->ctas, config.cluster);
          EXPECT_LE(launch->ctas, device.multiprocessors);
          EXPECT_EQ(launch->ctas % config.cluster, 0);
          EXPECT_LE(launch->shared_bytes, device.shared_memory_bytes);
          EXPECT_EQ(launch->params.k_blocks, 34);
        }
      }
    }
  }
}

// Swizzled operands and tensor copies begin at multiples of 1,024 bytes, and
// what the CTAs of a cluster load for each other makes up a tile.
TEST(PlanW8, CopiesFillTheStage) {
  for (const W8Kind kind : kW8Kinds) {
    for (const W8Config& config : AllConfigs(kind)) {
      const W8Tile& tile = config.tile;
      const W8Shared shared = LayOutW8(kind, tile);
      EXPECT_EQ(shared.stage_bytes % 1024, 0);
      EXPECT_EQ(shared.scales_at % 16, 0);
      EXPECT_EQ(shared.vectors_at % 16, 0);
      EXPECT_EQ(shared.barriers_at % 8, 0);
      for (const int64_t m : kRows) {
        const auto launch = PlanW8({kind, m, 4'096, 256}, config, Hopper());
        ASSERT_TRUE(launch.has_value());
        const W8Params& p = launch->params;
        const int x_sharers = tile.SharesW() ? 1 : config.cluster;
        const int w_sharers = tile.SharesW() ? config.cluster : 1;
        EXPECT_EQ(p.x_box % 8, 0);
        EXPECT_EQ(p.w_box % 8, 0);
        EXPECT_EQ(p.w_box * w_sharers, tile.columns);
        EXPECT_GE(p.x_box * x_sharers, std::min<int64_t>(m, tile.rows));
        EXPECT_LE(p.x_box * x_sharers, tile.rows);
        EXPECT_LE(p.w_box, 256);
      }
    }
  }
}

TEST(PlaceW8, ReachesEveryTileOnce) {
  for (const W8Kind kind : kW8Kinds) {
    for (const W8Config& config : AllConfigs(kind)) {
      for (const int64_t m : {1, 65, 1'000, 5'000}) {
        for (const int64_t n : {1, 576, 2'112}) {
          const W8Problem problem{kind, m, n, 128};
          const auto launch = PlanW8(problem, config, Hopper());
          ASSERT_TRUE(launch.has_value());
          const W8Params& p = launch->params;
          std::set<std::pair<int, int>> seen;
          for (int item = 0; item < p.row_items * p.column_items; ++item) {
            for (int rank = 0; rank < config.cluster; ++rank) {
              const W8Place at = PlaceW8(p, config.tile, item, rank);
              ASSERT_EQ(at.row % config.tile.rows, 0);
              ASSERT_EQ(at.column % config.tile.columns, 0);
              ASSERT_TRUE(seen.insert({at.row, at.column}).second);
            }
          }
          for (int row = 0; row < m; row += config.tile.rows) {
            for (int column = 0; column < n; column += config.tile.columns) {
              ASSERT_TRUE(seen.count({row, column}))
                  << W8Spec(kind, config).ToString() << " "
                  << problem.ToString() << ": " << row << " " << column;
            }
          }
        }
      }
    }
  }
}

TEST(W8Candidates, AreFeasibleWhereTheyAreCompiled) {
  for (const DeviceInfo& device : test::TestDevices()) {
    for (const W8Kind kind : kW8Kinds) {
      const W8Problem problem{kind, 33, 4'096, 14'336};
      const auto specs = W8Candidates(problem, device);
      EXPECT_EQ(specs.empty(), !CheckW8Device(kind, device).ok());
      for (const LaunchSpec& spec : specs) {
        EXPECT_TRUE(W8Feasible(problem, spec, device)) << spec.ToString();
        const bool mma = spec.variant == "mma";
        EXPECT_EQ(mma, device.compute_major != 9 || !W8WgmmaIsCompiled());
        EXPECT_EQ(W8Feasible(problem, spec, test::TestDevice(8, 0, 108, 163)),
                  mma && IsInt8(kind));
      }
    }
  }
}

TEST(W8Problem, PrintsAsOneLine) {
  EXPECT_EQ((W8Problem{W8Kind::kE4m3Block, 7, 64, 128}).ToString(),
            "e4m3_block m=7 n=64 k=128");
}

}  // namespace
}  // namespace nibble::kernels::cuda
