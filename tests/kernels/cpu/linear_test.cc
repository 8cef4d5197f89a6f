// Linear layers of the CPU backend against sums in FP64.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/reference/dequant.h"
#include "tests/kernels/cpu/cpu_test_util.h"
#include "tests/kernels/cpu/exact_sum.h"
#include "tests/support/tolerance.h"

namespace nibble::test {
namespace {

using kernels::QuantFormat;
using kernels::TensorView;
using kernels::WeightView;
using kernels::cpu::AvailableTargets;
using kernels::cpu::CpuTarget;

bool IsFloat(QuantFormat format) {
  return kernels::Info(format).code == kernels::CodeType::kFloat;
}

std::vector<double> RowSeenBy(QuantFormat format, std::span<const float> x,
                              const kernels::Activations& activations,
                              int64_t row) {
  const int64_t k = activations.k();
  if (!IsFloat(format)) return DecodeRow(activations, row);
  return {x.begin() + row * k, x.begin() + (row + 1) * k};
}

struct Case {
  QuantFormat format;
  CpuTarget target;
};

class LinearTest : public ::testing::TestWithParam<Case> {
 protected:
  // Runs [n, k] on `rows` rows and compares all that came out.
  void Check(const TestWeight& weight, int64_t n, int64_t k, int64_t rows) {
    const auto [format, target] = GetParam();
    const auto backend = MakeBackend(2, target);
    const std::vector<float> x = random_.Normals(rows * k);
    const auto activations = Encode(x, rows, k);
    const auto op = MakeOp(*backend, weight);
    GuardedMatrix y(rows, n);
    op->Run({.x = activations.get(), .y = y.View()});
    const std::vector<float> w = weight.Dequantized();
    for (int64_t row = 0; row < rows; ++row) {
      const std::vector<double> seen = RowSeenBy(format, x, *activations, row);
      for (int64_t i = 0; i < n; ++i) {
        const ExactSum expected =
            SumExactly(std::span<const float>(w).subspan(i * k, k), seen);
        ASSERT_NEAR(y.Row(row)[i], expected.value, expected.bound)
            << "row " << row << " column " << i << " of " << n << " x " << k;
      }
    }
    EXPECT_TRUE(y.GuardsAreWhole());
  }

  Random random_{7};
};

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const kernels::FormatInfo& info : kernels::kFormatTable) {
    for (const CpuTarget target : AvailableTargets()) {
      // The float formats do not depend on the target.
      if (IsFloat(info.format) && target != AvailableTargets().back()) continue;
      cases.push_back({info.format, target});
    }
  }
  return cases;
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  std::string name(kernels::Name(info.param.format));
  for (const char c : kernels::cpu::TargetName(info.param.target)) {
    if (std::isalnum(c)) name += c;
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, LinearTest, ::testing::ValuesIn(AllCases()),
                         CaseName);

TEST_P(LinearTest, MatchesExactSums) {
  for (const int64_t n : {1, 3, 64, 72}) {
    for (const int64_t any_k : {32, 96, 576}) {
      const int64_t k = FitK(GetParam().format, any_k);
      Check(RandomWeight(GetParam().format, n, k, random_), n, k, 5);
    }
  }
}

TEST_P(LinearTest, MatchesExactSumsOfLongRows) {
  const int64_t k = FitK(GetParam().format, 2880);
  Check(RandomWeight(GetParam().format, 20, k, random_), 20, k, 2);
  Check(RandomWeight(GetParam().format, 320, 768, random_), 320, 768, 1);
}

TEST_P(LinearTest, TakesEveryCodeAndScale) {
  const QuantFormat format = GetParam().format;
  const int64_t n = 37, k = 512, rows = 3;
  const std::vector<std::byte> blocks = RandomBlocks(format, n, k, random_);
  const WeightView view{
      .name = "w", .format = format, .n = n, .k = k, .data = blocks.data()};
  const auto backend = MakeBackend(1, GetParam().target);
  const auto op = backend->MakeLinear({&view, 1}, {.name = "t"}).value();
  const std::vector<float> x = random_.Normals(rows * k);
  const auto activations = Encode(x, rows, k);
  GuardedMatrix y(rows, n);
  op->Run({.x = activations.get(), .y = y.View()});
  std::vector<float> w(k);
  for (int64_t i = 0; i < n; ++i) {
    kernels::reference::DequantizeRow(format, view.Row(i), k, w.data());
    for (int64_t row = 0; row < rows; ++row) {
      const ExactSum expected =
          SumExactly(w, RowSeenBy(format, x, *activations, row));
      ASSERT_NEAR(y.Row(row)[i], expected.value, expected.bound)
          << row << ", " << i;
    }
  }
}

TEST_P(LinearTest, StaysCloseToFloatActivations) {
  const int64_t n = 96, k = 512;
  const TestWeight weight = RandomWeight(GetParam().format, n, k, random_);
  const std::vector<float> x = random_.Normals(k), w = weight.Dequantized();
  const auto backend = MakeBackend(1, GetParam().target);
  const auto activations = Encode(x, 1, k);
  GuardedMatrix y(1, n);
  MakeOp(*backend, weight)->Run({.x = activations.get(), .y = y.View()});
  std::vector<float> expected(n);
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) {
      sum += static_cast<double>(w[i * k + j]) * static_cast<double>(x[j]);
    }
    expected[i] = static_cast<float>(sum);
  }
  // Rounding to a step of max |x| / 127 errs by step / sqrt(12) in the mean;
  // the greatest of 32 normal values is 2 to 3 deviations, so about 0.6%.
  EXPECT_LT(RelativeError(y.Row(0), expected), 0.012);
}

TEST_P(LinearTest, ReadsWeightsAtAnyAddress) {
  TestWeight weight = RandomWeight(GetParam().format, 17, 256, random_);
  for (const int64_t shift : {1, 3, 30}) {
    weight.Misalign(shift);
    Check(weight, 17, 256, 1);
  }
}

TEST_P(LinearTest, KeepsARowsNonFiniteValuesInThatRow) {
  const int64_t n = 33, k = 256, rows = 6;
  const TestWeight weight = RandomWeight(GetParam().format, n, k, random_);
  std::vector<float> x = random_.Normals(rows * k);
  const auto backend = MakeBackend(1, GetParam().target);
  const auto op = MakeOp(*backend, weight);
  const auto run = [&](GuardedMatrix& y) {
    const auto activations = Encode(x, rows, k);
    op->Run({.x = activations.get(), .y = y.View()});
  };
  GuardedMatrix clean(rows, n), broken(rows, n);
  run(clean);
  x[1 * k + 7] = kNaN;
  x[4 * k + 100] = kInfinity;
  run(broken);
  for (const int64_t row : {0, 2, 3, 5}) {
    EXPECT_TRUE(SameBits(broken.Row(row), clean.Row(row))) << row;
  }
  for (const int64_t row : {1, 4}) {
    int64_t finite = 0;
    for (const float value : broken.Row(row)) finite += std::isfinite(value);
    // A weight of 0 may hide an infinity from a float format.
    EXPECT_LE(finite, IsFloat(GetParam().format) && row == 4 ? n : 0) << row;
  }
}

TEST_P(LinearTest, GathersDequantizedRows) {
  const int64_t n = 21, k = 256;
  const TestWeight weight = RandomWeight(GetParam().format, n, k, random_);
  const auto backend = MakeBackend(2, GetParam().target);
  const auto op = MakeOp(*backend, weight);
  const std::vector<int32_t> ids = {20, 0, 7, 7};
  GuardedMatrix y(4, k);
  op->GatherRows(ids, y.View());
  const std::vector<float> w = weight.Dequantized();
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(
        SameBits(y.Row(i), std::span<const float>(w).subspan(ids[i] * k, k)));
  }
  EXPECT_TRUE(y.GuardsAreWhole());
}

TEST(CpuLinearTest, StacksPartsOfDifferentFormats) {
  Random random(3);
  const int64_t k = 256, rows = 9;
  const TestWeight a = RandomWeight(QuantFormat::kQ4_1, 20, k, random);
  const TestWeight b = RandomWeight(QuantFormat::kF16, 3, k, random);
  const TestWeight c = RandomWeight(QuantFormat::kQ6_K, 33, k, random);
  const std::vector<float> x = random.Normals(rows * k);
  const std::vector<float> bias = random.Normals(56);
  const auto backend = MakeBackend(2);
  const auto activations = Encode(x, rows, k);
  const std::vector<WeightView> parts = {a.View(), b.View(), c.View()};
  const auto op =
      backend->MakeLinear(parts, {.name = "qkv", .bias = bias.data()}).value();
  EXPECT_EQ(op->n(), 56);
  GuardedMatrix y(rows, 56);
  op->Run({.x = activations.get(), .y = y.View()});
  int64_t column = 0;
  for (const TestWeight* part : {&a, &b, &c}) {
    const auto alone = MakeOp(*backend, *part);
    GuardedMatrix part_y(rows, alone->n());
    alone->Run({.x = activations.get(), .y = part_y.View()});
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < alone->n(); ++i) {
        ASSERT_EQ(y.Row(row)[column + i],
                  part_y.Row(row)[i] + bias[column + i]);
      }
    }
    column += alone->n();
  }
  // kAdd adds the same to what is there.
  GuardedMatrix sum(rows, 56);
  const std::vector<float> before = random.Normals(rows * 56);
  for (int64_t i = 0; i < rows * 56; ++i) sum.Row(i / 56)[i % 56] = before[i];
  op->Run({.x = activations.get(),
           .y = sum.View(),
           .epilogue = kernels::Epilogue::kAdd});
  for (int64_t i = 0; i < rows * 56; ++i) {
    ASSERT_EQ(sum.Row(i / 56)[i % 56], before[i] + y.Row(i / 56)[i % 56]);
  }
  EXPECT_TRUE(sum.GuardsAreWhole());
}

TEST(CpuLinearTest, NoRowsIsNoWork) {
  Random random(3);
  const auto backend = MakeBackend(2);
  const TestWeight weight = RandomWeight(QuantFormat::kQ8_0, 8, 32, random);
  const auto activations = Encode(random.Normals(32), 1, 32);
  float untouched = 5;
  MakeOp(*backend, weight)
      ->Run({.x = activations.get(), .y = TensorView::F32(&untouched, 0, 8)});
  EXPECT_EQ(untouched, 5);
}

TEST(CpuLinearTest, RefusesWhatItCannotRunByName) {
  const auto backend = MakeBackend(1);
  const std::vector<std::byte> data(1 << 16);
  const auto refusal = [&](std::vector<WeightView> parts) {
    for (WeightView& part : parts) part.data = data.data();
    const auto op = backend->MakeLinear(parts, {.name = "layer"});
    EXPECT_EQ(op.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(op.status().message());
  };
  for (const kernels::FormatInfo& info : kernels::kFormatTable) {
    if (info.block_elements == 1) continue;
    for (const int64_t k : {72, 2880 - 16}) {
      const std::string message =
          refusal({{.name = "blk.0.x", .format = info.format, .n = 2, .k = k}});
      EXPECT_NE(message.find("blk.0.x"), std::string::npos) << message;
      EXPECT_NE(message.find(std::to_string(k)), std::string::npos) << message;
      EXPECT_NE(message.find(info.name), std::string::npos) << message;
    }
  }
  EXPECT_NE(
      refusal({{.name = "a", .n = 1, .k = 64}, {.name = "b", .n = 1, .k = 32}})
          .find("'b'"),
      std::string::npos);
  EXPECT_NE(refusal({{.name = "none", .n = 0, .k = 64}}).find("'none'"),
            std::string::npos);
  EXPECT_NE(refusal({}).find("layer"), std::string::npos);
}

TEST(CpuLinearTest, HasNoFusedSilu) {
  Random random(4);
  const auto backend = MakeBackend(1);
  const TestWeight weight = RandomWeight(QuantFormat::kQ4_0, 8, 64, random);
  const std::vector<WeightView> parts = {weight.View(), weight.View()};
  const absl::Status status =
      backend->MakeLinear(parts, {.name = "layer", .silu_mul = true}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(std::string(status.message()).find("layer"), std::string::npos);
}

TEST(CpuLinearTest, PacksFourBitWeightsInFourBits) {
  Random random(3);
  const auto backend = MakeBackend(1);
  for (const kernels::FormatInfo& info : kernels::kFormatTable) {
    const TestWeight weight = RandomWeight(info.format, 64, 512, random);
    const auto op = MakeOp(*backend, weight);
    EXPECT_LE(static_cast<double>(op->packed_bytes()),
              1.04 * static_cast<double>(weight.View().Bytes()))
        << info.name;
  }
  const TestWeight embedding =
      RandomWeight(QuantFormat::kQ4_0, 64, 512, random);
  const WeightView view = embedding.View();
  const auto gather_only = backend->MakeLinear(
      {&view, 1}, {.name = "e", .gather = true, .multiply = false});
  EXPECT_EQ(gather_only.value()->packed_bytes(), 0);
}

}  // namespace
}  // namespace nibble::test
