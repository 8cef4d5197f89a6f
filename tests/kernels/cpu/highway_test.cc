// What Highway compiled for each instruction set, run on each that this
// machine has.
#include "kernels/cpu/highway.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "hwy/highway.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/float_dot.h"
#include "kernels/cpu/store_sums.h"
#include "kernels/reference/half.h"
#include "kernels/reference/ops.h"
#include "kernels/reference/vocab_ops.h"
#include "tests/kernels/cpu/cpu_test_util.h"
#include "tests/support/tolerance.h"

namespace nibble::test {
namespace {

using kernels::Epilogue;
using kernels::QuantFormat;
using kernels::RopeParams;

class HighwayTest : public ::testing::TestWithParam<int64_t> {
 protected:
  HighwayTest() { Choose(GetParam()); }
  ~HighwayTest() override { Choose(0); }

  // 0: what the machine has.
  static void Choose(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
  }

  Random random_{31};
};

std::vector<int64_t> MachineTargets() {
  std::vector<int64_t> targets;
  for (int64_t left = hwy::SupportedTargets() & (HWY_TARGETS); left != 0;
       left &= left - 1) {
    targets.push_back(left & -left);
  }
  return targets;
}

INSTANTIATE_TEST_SUITE_P(All, HighwayTest,
                         ::testing::ValuesIn(MachineTargets()),
                         [](const auto& info) {
                           return std::string(hwy::TargetName(info.param));
                         });

TEST_P(HighwayTest, SumsOfAPanel) {
  constexpr int64_t kRows = 5, kStride = 40;
  for (const int64_t columns : {1, 7, 15, 16}) {
    const std::vector<float> sums = random_.Normals(kRows * 16);
    const std::vector<float> bias = random_.Normals(columns);
    const std::vector<float> before = random_.Normals(kRows * kStride);
    for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd}) {
      std::vector<float> y = before, want = before;
      for (int64_t r = 0; r < kRows; ++r) {
        for (int64_t i = 0; i < columns; ++i) {
          const float v = sums[r * 16 + i] + bias[i];
          float& at = want[r * kStride + i];
          at = epilogue == Epilogue::kAdd ? at + v : v;
        }
      }
      kernels::cpu::StoreSums({.sums = sums.data(),
                               .rows = kRows,
                               .columns = columns,
                               .bias = bias.data(),
                               .y = y.data(),
                               .y_stride = kStride},
                              epilogue);
      EXPECT_EQ(y, want) << columns << " columns";
    }
  }
}

TEST_P(HighwayTest, NormGateAndCodes) {
  for (const int64_t k : {32, 96, 200, 576}) {
    const std::vector<float> x = random_.Normals(2 * k, 3.0f);
    const std::vector<float> weight = random_.Normals(k);
    std::vector<float> norm(k), gate(k), want_norm(k), want_gate(k);
    kernels::cpu::RmsNormRow(x.data(), weight.data(), 1e-5f, k,
                             {.floats = norm.data()});
    kernels::cpu::SiluMulRow(x.data(), k, {.floats = gate.data()});
    kernels::reference::RmsNormRow(x.data(), weight.data(), 1e-5f, k,
                                   want_norm.data());
    kernels::reference::SiluMulRow(x.data(), k, want_gate.data());
    const double bound = kEpsilonF32 * (8 + static_cast<double>(k));
    EXPECT_LT(RelativeError(norm, want_norm), bound);
    EXPECT_LT(RelativeError(gate, want_gate), 8 * kEpsilonF32);
    if (k % kernels::cpu::kBlock != 0) continue;
    const std::vector<double> seen = DecodeRow(*Encode(x, 2, k), 1);
    for (int64_t i = 0; i < k; ++i) {
      // Half a step of a span of at most 30.
      ASSERT_NEAR(seen[i], x[k + i], 15.0 / 254);
    }
  }
}

TEST_P(HighwayTest, Rotation) {
  for (const auto pairing :
       {RopeParams::Pairing::kAdjacent, RopeParams::Pairing::kHalves}) {
    constexpr int32_t kPairs = 19, kHeads = 3, kHeadDim = 40;
    RopeParams rope;
    rope.pairing = pairing;
    std::vector<float> cosine(2 * kPairs), sine(2 * kPairs);
    for (int32_t i = 0; i < kPairs; ++i) {
      rope.inverse_frequency.push_back(1.0f / static_cast<float>(i + 1));
      const double angle =
          7 * static_cast<double>(rope.inverse_frequency.back());
      const bool adjacent = pairing == RopeParams::Pairing::kAdjacent;
      const int32_t a = adjacent ? 2 * i : i;
      const int32_t b = adjacent ? a + 1 : a + kPairs;
      cosine[a] = cosine[b] = static_cast<float>(std::cos(angle));
      sine[b] = static_cast<float>(std::sin(angle));
      sine[a] = -sine[b];
    }
    std::vector<float> row = random_.Normals(kHeads * kHeadDim), want = row;
    kernels::cpu::ApplyRope({.cosine = cosine.data(),
                             .sine = sine.data(),
                             .rotary_dims = 2 * kPairs,
                             .pairing = pairing},
                            kHeads, kHeadDim, row.data());
    kernels::reference::RopeRow(rope, 7, kHeads, kHeadDim, want.data());
    EXPECT_LT(RelativeError(row, want), 2 * kEpsilonF32);
  }
}

TEST_P(HighwayTest, FloatWeights) {
  const int64_t k = 77;
  for (const QuantFormat format :
       {QuantFormat::kF32, QuantFormat::kF16, QuantFormat::kBF16}) {
    const TestWeight weight = RandomWeight(format, 40, k, random_);
    const std::vector<float> w = weight.Dequantized();
    const std::vector<float> x = random_.Normals(7 * k);
    const auto backend = MakeBackend(1);
    const auto activations = Encode(x, 7, k);
    GuardedMatrix y(7, 40);
    MakeOp(*backend, weight)->Run({.x = activations.get(), .y = y.View()});
    for (int64_t row = 0; row < 7; ++row) {
      std::vector<float> want(40);
      for (int64_t i = 0; i < 40; ++i) {
        want[i] = static_cast<float>(
            kernels::reference::Dot(w.data() + i * k, x.data() + row * k, k));
      }
      EXPECT_LT(RelativeError(y.Row(row), want),
                kEpsilonF32 * static_cast<double>(k));
    }
  }
}

TEST_P(HighwayTest, HalvesAndBestLogit) {
  std::vector<float> x = random_.Normals(99, 100.0f);
  x[98] = 1e6f;
  std::vector<uint16_t> halves(99);
  kernels::cpu::StoreHalves(x.data(), 99, halves.data());
  for (int i = 0; i < 98; ++i) {
    ASSERT_NEAR(kernels::reference::HalfToFloat(halves[i]), x[i],
                0x1p-10f * std::fabs(x[i]));
  }
  EXPECT_EQ(kernels::cpu::FindBestLogit(x).id, 98);
  x[40] = x[60] = 2e6f;
  EXPECT_EQ(kernels::cpu::FindBestLogit(x).id, 40);
  EXPECT_TRUE(kernels::cpu::FindBestLogit(x).valid);
  x[50] = kNaN;
  EXPECT_FALSE(kernels::cpu::FindBestLogit(x).valid);
}

TEST_P(HighwayTest, Attention) {
  constexpr int32_t kHeads = 6, kKvHeads = 2, kDim = 40, kPage = 7, kRows = 90;
  constexpr int64_t kWidth = kHeads * kDim;
  std::vector<uint16_t> k(13 * kPage * kKvHeads * kDim);
  for (uint16_t& half : k) {
    half = kernels::reference::FloatToHalf(random_.Normal());
  }
  std::vector<uint16_t> v(k.rbegin(), k.rend());
  std::vector<float> q = random_.Normals(kRows * kWidth);
  std::vector<int32_t> pages(13);
  std::iota(pages.rbegin(), pages.rend(), 0);
  const kernels::KvLayerView kv{.k = k.data(),
                                .v = v.data(),
                                .dtype = kernels::DType::kF16,
                                .page_size = kPage,
                                .kv_heads = kKvHeads,
                                .head_dim = kDim};
  std::vector<float> tiled(kRows * kWidth), alone(kRows * kWidth);
  std::vector<float> scratch(
      kernels::cpu::AttentionScratch(kDim, kRows * kHeads));
  const auto run = [&](int32_t first, int32_t rows, float* out) {
    for (int32_t head = 0; head < kKvHeads; ++head) {
      kernels::cpu::RunAttention(
          {.tile = {first, rows, first, pages},
           .first_kv_head = head,
           .kv_heads = 1,
           .group = 3,
           .scale = 0.2f,
           .head_dim = kDim,
           .kv = kv,
           .q = kernels::TensorView::F32(q.data(), kRows, kWidth),
           .out = out,
           .out_stride = kWidth},
          scratch.data());
    }
  };
  run(0, kRows, tiled.data());
  for (int32_t row = 0; row < kRows; ++row) run(row, 1, alone.data());
  EXPECT_TRUE(SameBits(tiled, alone));
  std::vector<float> want(kWidth);
  for (int32_t row = 0; row < kRows; ++row) {
    kernels::reference::AttentionOneRow(
        {.q = q.data() + row * kWidth, .position = row, .page_ids = pages}, kv,
        {.heads = kHeads,
         .kv_heads = kKvHeads,
         .head_dim = kDim,
         .scale = 0.2f},
        want.data());
    EXPECT_LT(
        RelativeError(
            std::span<const float>(tiled).subspan(row * kWidth, kWidth), want),
        100 * kEpsilonF32);
  }
}

}  // namespace
}  // namespace nibble::test
