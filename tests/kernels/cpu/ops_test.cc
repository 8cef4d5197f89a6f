// Norm, gate, rotation and copies of the CPU backend against the reference.
#include "kernels/reference/ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include "kernels/reference/half.h"
#include "tests/kernels/cpu/cpu_test_util.h"
#include "tests/support/tolerance.h"

namespace nibble::test {
namespace {

using kernels::Activations;
using kernels::Backend;
using kernels::KvLayerView;
using kernels::QuantFormat;
using kernels::RopeParams;
using kernels::TensorView;
using kernels::cpu::CpuActivations;
using kernels::cpu::kBlock;
using kernels::cpu::kQuad;
using kernels::cpu::QuadBlock;

// A backend that has layers of width k for both encodings (for floats only
// where k is no multiple of 32), and activations of that width.
struct Fixture {
  Fixture(int64_t max_rows, int64_t k, int threads = 2)
      : backend(MakeBackend(threads)) {
    Random random(1);
    const TestWeight floats = RandomWeight(QuantFormat::kF32, 1, k, random);
    ops.push_back(MakeOp(*backend, floats));
    if (k % kBlock == 0) {
      const TestWeight codes = RandomWeight(QuantFormat::kQ8_0, 1, k, random);
      ops.push_back(MakeOp(*backend, codes));
    }
    out = backend->MakeActivations(max_rows, k).value();
    for (int64_t row = 0; row < max_rows; ++row) {
      for (float& value : Floats(row)) value = kNaN;
    }
  }

  CpuActivations& cpu() { return static_cast<CpuActivations&>(*out); }
  std::span<float> Floats(int64_t row) {
    return {cpu().FloatRow(row), static_cast<size_t>(out->k())};
  }

  std::unique_ptr<Backend> backend;
  std::vector<std::unique_ptr<kernels::LinearOp>> ops;
  std::unique_ptr<Activations> out;
};

// The codes of a row are the nearest multiples of span / 254 to `floats`, and
// the sums are the codes'.
void ExpectCodesOf(const CpuActivations& x, int64_t row,
                   std::span<const float> floats) {
  if (x.k() % kBlock != 0) return;  // such a width has no codes
  const auto lane = static_cast<int>(row % kQuad);
  for (int64_t b = 0; b < x.blocks(); ++b) {
    const QuadBlock& block = x.Quad(row / kQuad)[b];
    float least = 0, greatest = 0;
    for (int i = 0; i < kBlock; ++i) {
      least = std::fmin(least, floats[b * kBlock + i]);
      greatest = std::fmax(greatest, floats[b * kBlock + i]);
    }
    const float span = greatest - least;
    ASSERT_NEAR(block.scale[lane], span / 254, span * 2e-7);
    int32_t sum = 0, low = 0;
    for (int i = 0; i < kBlock; ++i) {
      ASSERT_GE(block.codes[lane][i], -127);
      const int steps = block.codes[lane][i] + block.all[lane].neg_zero;
      // The last step may be clipped, where both ends were rounded outwards.
      ASSERT_NEAR(block.scale[lane] * static_cast<float>(steps),
                  floats[b * kBlock + i], 0.5001f * block.scale[lane]);
      sum += steps;
      if (i < kBlock / 2) low += steps;
    }
    ASSERT_EQ(block.all[lane].neg_sum, -sum);
    ASSERT_EQ(block.low[lane].neg_sum, -low);
    ASSERT_EQ(block.sum[lane], block.scale[lane] * static_cast<float>(sum));
  }
}

class WidthTest : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(All, WidthTest,
                         ::testing::Values(1, 7, 32, 72, 96, 576, 1536, 2880),
                         ::testing::PrintToStringParamName());

TEST_P(WidthTest, RmsNorm) {
  const int64_t k = GetParam(), rows = 37;
  Fixture setup(rows + 2, k);
  Random random(5);
  GuardedMatrix x(rows, k);
  for (int64_t row = 0; row < rows; ++row) {
    // From tiny to large rows.
    const auto size = static_cast<float>(std::pow(10.0, row % 9 - 4));
    for (float& value : x.Row(row)) value = random.Normal() * size;
  }
  const std::vector<float> weight = random.Normals(k);
  setup.backend->RmsNorm(x.View(), weight.data(), 1e-5f, setup.out.get());
  std::vector<float> expected(k);
  for (int64_t row = 0; row < rows; ++row) {
    kernels::reference::RmsNormRow(x.Row(row).data(), weight.data(), 1e-5f, k,
                                   expected.data());
    // The sum's error grows with the length of a lane's chain at most.
    ASSERT_LT(RelativeError(setup.Floats(row), expected),
              kEpsilonF32 * (8 + static_cast<double>(k) / 8));
    ExpectCodesOf(setup.cpu(), row, setup.Floats(row));
  }
  EXPECT_TRUE(std::isnan(setup.Floats(rows)[0])) << "wrote a row too many";
  EXPECT_TRUE(x.GuardsAreWhole());
}

TEST_P(WidthTest, SiluMul) {
  const int64_t k = GetParam(), rows = 5;
  Fixture setup(rows, k);
  Random random(6);
  GuardedMatrix gate_up(rows, 2 * k);
  for (int64_t row = 0; row < rows; ++row) {
    for (float& value : gate_up.Row(row)) value = 4 * random.Normal();
    gate_up.Row(row)[0] = row % 2 == 0 ? 200.0f : -200.0f;
  }
  setup.backend->SiluMul(gate_up.View(), setup.out.get());
  std::vector<float> expected(k);
  for (int64_t row = 0; row < rows; ++row) {
    kernels::reference::SiluMulRow(gate_up.Row(row).data(), k, expected.data());
    for (int64_t i = 0; i < k; ++i) {
      ASSERT_NEAR(setup.Floats(row)[i], expected[i],
                  8 * kEpsilonF32 * std::fabs(expected[i]) + 1e-30);
    }
    ExpectCodesOf(setup.cpu(), row, setup.Floats(row));
  }
}

TEST(CpuOpsTest, EncodesExtremesOfABlock) {
  std::vector<float> x(4 * kBlock, 0.0f);
  x[0] = 3e38f;             // block 0: one huge value
  x[kBlock + 3] = 1e-38f;   // block 1: too small to matter
  x[2 * kBlock] = -1e-20f;  // block 2: small
  const auto activations = Encode(x, 1, 4 * kBlock);
  const std::vector<double> seen = DecodeRow(*activations, 0);
  EXPECT_NEAR(seen[0] / 3e38, 1, 1e-6);
  EXPECT_NEAR(seen[2 * kBlock] / -1e-20, 1, 1e-6);
  for (const size_t i : {size_t{1}, size_t{kBlock + 3}, size_t{3 * kBlock}}) {
    EXPECT_EQ(seen[i], 0);
  }
}

struct RopeCase {
  RopeParams::Pairing pairing;
  int32_t heads, kv_heads, head_dim, pairs;
};

class RopeTest : public ::testing::TestWithParam<RopeCase> {};
INSTANTIATE_TEST_SUITE_P(
    All, RopeTest,
    ::testing::Values(RopeCase{RopeParams::Pairing::kAdjacent, 9, 3, 64, 32},
                      RopeCase{RopeParams::Pairing::kHalves, 12, 2, 128, 64},
                      RopeCase{RopeParams::Pairing::kAdjacent, 2, 1, 80, 33},
                      RopeCase{RopeParams::Pairing::kHalves, 2, 2, 72, 18},
                      RopeCase{RopeParams::Pairing::kHalves, 3, 3, 10, 5},
                      RopeCase{RopeParams::Pairing::kAdjacent, 1, 1, 2, 1}));

RopeParams MakeRope(const RopeCase& c) {
  RopeParams rope;
  rope.pairing = c.pairing;
  rope.attention_factor = 1.25f;
  for (int32_t i = 0; i < c.pairs; ++i) {
    rope.inverse_frequency.push_back(static_cast<float>(
        std::pow(10000.0, -static_cast<double>(i) / c.pairs)));
  }
  return rope;
}

// Keys and values of one layer, filled with a NaN of a certain pattern.
struct Pages {
  Pages(int64_t slots, const RopeCase& c, int32_t page_size)
      : k(slots * c.kv_heads * c.head_dim, kUnwritten),
        v(k),
        view{.k = k.data(),
             .v = v.data(),
             .dtype = kernels::DType::kF16,
             .page_size = page_size,
             .kv_heads = c.kv_heads,
             .head_dim = c.head_dim} {}

  static constexpr uint16_t kUnwritten = 0x7e11;
  std::vector<uint16_t> k, v;
  KvLayerView view;
};

// Equal but for an FP16 rounding that an FP32 one tipped over.
void ExpectCloseHalves(const std::vector<uint16_t>& got,
                       const std::vector<uint16_t>& want) {
  for (size_t i = 0; i < got.size(); ++i) {
    if (want[i] == Pages::kUnwritten) {
      ASSERT_EQ(got[i], want[i]) << i;
      continue;
    }
    const float w = kernels::reference::HalfToFloat(want[i]);
    ASSERT_NEAR(kernels::reference::HalfToFloat(got[i]), w,
                0x1p-10f * std::fabs(w) + 0x1p-24f)
        << i;
  }
}

GuardedMatrix RandomMatrix(int64_t rows, int64_t cols, Random& random) {
  GuardedMatrix matrix(rows, cols);
  for (int64_t row = 0; row < rows; ++row) {
    for (float& value : matrix.Row(row)) value = random.Normal();
  }
  return matrix;
}

TEST_P(RopeTest, TurnsAndWrites) {
  const RopeCase& c = GetParam();
  constexpr int32_t kPageSize = 5, kSlots = 45, kRows = 21;
  const auto backend = MakeBackend(2);
  Random random(8);
  const RopeParams rope = MakeRope(c);
  const int64_t width = int64_t{c.kv_heads} * c.head_dim;
  GuardedMatrix q = RandomMatrix(kRows, int64_t{c.heads} * c.head_dim, random);
  GuardedMatrix k = RandomMatrix(kRows, width, random);
  GuardedMatrix v = RandomMatrix(kRows, width, random);
  GuardedMatrix want_q = q, want_k = k;
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
  for (int32_t row = 0; row < kRows; ++row) {
    positions.push_back(row < 3 ? row : 5000 * row);
    slots.push_back((row * 2) % kSlots);
  }
  Pages pages(kSlots, c, kPageSize), want_pages(kSlots, c, kPageSize);
  const std::vector<int32_t> row_begin = {0, kRows}, page_begin = {0, 0};
  backend->BeginStep({.rows = kRows,
                      .positions = positions,
                      .slots = slots,
                      .row_begin = row_begin,
                      .page_begin = page_begin,
                      .page_ids = {}});
  backend->RopeAndWriteKv(q.View(), k.View(), v.View(), rope, pages.view);
  for (int32_t row = 0; row < kRows; ++row) {
    kernels::reference::RopeRow(rope, positions[row], c.heads, c.head_dim,
                                want_q.Row(row).data());
    kernels::reference::RopeRow(rope, positions[row], c.kv_heads, c.head_dim,
                                want_k.Row(row).data());
    kernels::reference::WriteKvRow(want_k.Row(row).data(), v.Row(row).data(),
                                   slots[row], want_pages.view);
    EXPECT_LT(RelativeError(q.Row(row), want_q.Row(row)), 2 * kEpsilonF32);
    EXPECT_LT(RelativeError(k.Row(row), want_k.Row(row)), 2 * kEpsilonF32);
  }
  EXPECT_EQ(pages.v, want_pages.v);
  ExpectCloseHalves(pages.k, want_pages.k);
  EXPECT_TRUE(q.GuardsAreWhole() && k.GuardsAreWhole());
}

TEST(CpuOpsTest, CopiesTheRowsAskedFor) {
  const auto backend = MakeBackend(1);
  GuardedMatrix x(4, 33), out(3, 33);
  for (int64_t row = 0; row < 4; ++row) {
    for (float& value : x.Row(row)) value = static_cast<float>(row);
  }
  const std::vector<int32_t> rows = {3, 0, 3};
  backend->CopyRows(x.View(), rows, out.View());
  for (int64_t i = 0; i < 3; ++i)
    EXPECT_TRUE(SameBits(out.Row(i), x.Row(rows[i])));
  EXPECT_TRUE(out.GuardsAreWhole());
}

TEST(CpuOpsTest, BackendsMayShareAPool) {
  const auto pool = std::make_shared<kernels::cpu::ThreadPool>(3);
  const auto work = [&pool](bool* right) {
    const auto backend = kernels::MakeCpuBackend({.pool = pool}).value();
    Random random(1);
    const int64_t n = 200, k = 256, rows = 20;
    const TestWeight weight = RandomWeight(QuantFormat::kQ4_0, n, k, random);
    const auto op = MakeOp(*backend, weight);
    const auto x = Encode(random.Normals(rows * k), rows, k);
    GuardedMatrix first(rows, n), again(rows, n);
    op->Run({.x = x.get(), .y = first.View()});
    *right = true;
    for (int i = 0; i < 200; ++i) {
      op->Run({.x = x.get(), .y = again.View()});
      for (int64_t row = 0; row < rows; ++row) {
        *right = *right && SameBits(first.Row(row), again.Row(row));
      }
    }
  };
  bool right[3] = {};
  std::vector<std::thread> engines;
  for (bool& r : right) engines.emplace_back(work, &r);
  for (std::thread& engine : engines) engine.join();
  EXPECT_TRUE(right[0] && right[1] && right[2]);
}

TEST(CpuOpsTest, SaysWhatItIs) {
  const auto backend = MakeBackend(2, kernels::cpu::CpuTarget::kPortable);
  EXPECT_EQ(backend->name(), "cpu");
  EXPECT_EQ(backend->description(), "portable, 2 threads");
  EXPECT_EQ(backend->kv_dtype(), kernels::DType::kF16);
  EXPECT_FALSE(kernels::MakeCpuBackend({.threads = -1}).ok());
  EXPECT_FALSE(kernels::MakeCpuBackend({.threads = 5000}).ok());
  EXPECT_TRUE(kernels::MakeCpuBackend().ok());
}

TEST(CpuOpsTest, MeasuresItsTime) {
  Fixture setup(64, 1536);
  GuardedMatrix y(64, 1);
  Random random(1);
  GuardedMatrix x(64, 1536);
  for (int64_t row = 0; row < 64; ++row) {
    for (float& value : x.Row(row)) value = random.Normal();
  }
  const std::vector<float> weight(1536, 1.0f);
  setup.backend->RmsNorm(x.View(), weight.data(), 1e-5f, setup.out.get());
  setup.ops[0]->Run({.x = setup.out.get(), .y = y.View()});
  EXPECT_GT(setup.backend->TakeTimings().linear_seconds, 0);
  EXPECT_EQ(setup.backend->TakeTimings().linear_seconds, 0);
}

}  // namespace
}  // namespace nibble::test
