// What the host decides about launches of the W4A16 kernel for many rows.
#include <gtest/gtest.h>

#include <cstdint>

#include "kernels/cuda/linear/w4a16_mid.h"
#include "tests/support/random.h"

namespace nibble::kernels::cuda {
namespace {

DeviceInfo Hopper() {
  DeviceInfo device;
  device.compute_major = 9;
  device.multiprocessors = 132;
  device.shared_memory_bytes = 232'448;
  return device;
}

W4Weights Weights(int64_t n, int64_t k, const W4Layout& layout) {
  W4Weights w;
  w.n = n;
  w.k = k;
  w.layout = layout;
  return w;
}

constexpr W4Layout kInt4{W4Code::kInt4, W4Scale::kScaleMin, 128};
constexpr W4Layout kInt4By32{W4Code::kInt4, W4Scale::kScaleMin, 32};
constexpr W4Layout kNvfp4{W4Code::kE2m1, W4Scale::kE4m3, 16};

TEST(FastDivide, IsExact) {
  test::Random random(1);
  for (int64_t d : {1, 2, 3, 7, 8, 12, 448, 3'584, 65'537, 2'147'483'391}) {
    const FastDivide divide = DivideBy(d);
    for (int64_t n :
         {int64_t{0}, d - 1, d, 5 * d - 1, 5 * d, int64_t{2'147'483'647}}) {
      if (n > 2'147'483'647) continue;
      EXPECT_EQ(divide(static_cast<int>(n)), n / d) << n << " / " << d;
    }
    for (int i = 0; i < 1'000; ++i) {
      const auto n = random.Int(0, 2'147'483'647);
      ASSERT_EQ(divide(static_cast<int>(n)), n / d) << n << " / " << d;
    }
  }
}

TEST(PlanMid, FitsForEveryConfigWorthTrying) {
  const DeviceInfo device = Hopper();
  for (const W4Layout& layout : {kInt4, kInt4By32, kNvfp4}) {
    for (const int64_t k : {256, 576, 4'096, 14'336, 100'000}) {
      for (const int64_t m : {1, 9, 16, 33, 128, 1'000, 100'000}) {
        const W4Weights w = Weights(4'096, k, layout);
        const auto configs = MidConfigs(w, m, W4Epilogue::kStore, device);
        EXPECT_FALSE(configs.empty()) << k << " " << m;
        for (const MidConfig& config : configs) {
          const auto launch = PlanMid(w, m, W4Epilogue::kStore, config, device);
          ASSERT_TRUE(launch.has_value());
          EXPECT_LE(launch->shared_bytes, device.shared_memory_bytes);
          EXPECT_LE(launch->ctas, device.multiprocessors);
          // Every row of x and of W, and every block of k, has its work item.
          const MidParams& p = launch->params;
          EXPECT_EQ(p.work, CeilDiv(w.n, kMidRows) *
                                CeilDiv(m, config.variant.columns) *
                                config.parts);
          EXPECT_EQ(p.work % (1 << p.parts_log2), 0);
          EXPECT_EQ(1 << p.parts_log2, config.parts);
          EXPECT_GE(p.part_blocks * config.parts, p.blocks_k);
          EXPECT_LT(p.part_blocks * (config.parts - 1), p.blocks_k);
          // Parts, quarters and slices end together.
          EXPECT_EQ(p.part_blocks % p.quarter_blocks, 0);
          EXPECT_EQ(p.quarter_blocks % p.slice_blocks, 0);
        }
      }
    }
  }
}

TEST(MidSpec, IsReadBack) {
  const W4Weights w = Weights(4'096, 4'096, kInt4);
  for (const int64_t m : {16, 32, 64, 256}) {
    for (const MidConfig& config :
         MidConfigs(w, m, W4Epilogue::kStore, Hopper())) {
      const auto read = ParseMidSpec(MidSpec(config));
      ASSERT_TRUE(read.has_value()) << MidSpec(config).ToString();
      EXPECT_EQ(read->variant, config.variant);
      EXPECT_EQ(read->parts, config.parts);
    }
  }
}

TEST(PlanMid, RefusesWhatTheKernelCannotDo) {
  const W4Weights w = Weights(4'096, 4'096, kInt4);
  const auto refuses = [&](const MidConfig& config, const DeviceInfo& device) {
    return !PlanMid(w, 64, W4Epilogue::kStore, config, device).has_value();
  };
  const MidVariant narrow = kMidVariants[1], fused = kMidVariants[4];
  ASSERT_TRUE(!narrow.fused && fused.fused);
  for (const int parts : {1, 2, 4}) {
    EXPECT_FALSE(refuses({narrow, parts}, Hopper())) << parts;
  }
  for (const int parts : {-1, 0, 3, 8}) {
    EXPECT_TRUE(refuses({narrow, parts}, Hopper())) << parts;
  }
  DeviceInfo ampere = Hopper();
  ampere.compute_major = 8;
  EXPECT_TRUE(refuses({narrow, 1}, ampere));
  EXPECT_FALSE(refuses({fused, 1}, Hopper()));
  EXPECT_FALSE(PlanMid(Weights(4'096, 8'192, kInt4), 64, W4Epilogue::kStore,
                       {fused, 1}, Hopper()));
  EXPECT_FALSE(PlanMid(Weights(4'096, 4'096, kInt4By32), 64, W4Epilogue::kStore,
                       {fused, 1}, Hopper()));
  // Too few slices for four parts; too many tiles for parts.
  EXPECT_FALSE(PlanMid(Weights(4'096, 512, kInt4), 64, W4Epilogue::kStore,
                       {narrow, 4}, Hopper()));
  EXPECT_FALSE(PlanMid(Weights(65'536, 4'096, kInt4), 64, W4Epilogue::kStore,
                       {narrow, 2}, Hopper()));
}

TEST(MidScratch, HoldsWhatEveryConfigLeavesThere) {
  for (const int64_t m : {1, 16, 17, 64, 65, 128, 129, 5'000}) {
    for (const int64_t k : {96, 4'096, 14'340}) {
      const MidScratch scratch = LayOutMidScratch(m, k);
      EXPECT_GE(scratch.x_pitch, k);
      EXPECT_EQ(scratch.x_pitch % 8, 0);
      EXPECT_EQ(scratch.sums_at % 128, 0);
      EXPECT_GE(scratch.sums_at, m * scratch.x_pitch * 2);
      EXPECT_EQ(scratch.partials_at % 128, 0);
      EXPECT_GE(scratch.partials_at,
                scratch.arrived_at + kMaxSplitItems * kMidWarpgroups * 4);
      for (const int columns : {32, 64, 128}) {
        const int64_t groups = BlocksPerTile(k) * kInt4By32.GroupsPerBlock();
        EXPECT_GE(scratch.arrived_at,
                  scratch.sums_at +
                      CeilDiv(m, columns) * groups * SumsPitch(columns) * 4)
            << m << " " << columns;
      }
      const W4Weights w = Weights(4'096, k, kInt4);
      for (const MidConfig& config :
           MidConfigs(w, m, W4Epilogue::kStore, Hopper())) {
        if (config.parts == 1) continue;
        const int64_t tiles =
            CeilDiv(w.n, kMidRows) * CeilDiv(m, config.variant.columns);
        EXPECT_GE(scratch.total_bytes,
                  scratch.partials_at + tiles * kSliceSharers * kMidRows *
                                            config.variant.columns * 4)
            << MidSpec(config).ToString();
      }
    }
  }
}

}  // namespace
}  // namespace nibble::kernels::cuda
