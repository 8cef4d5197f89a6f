#include "kernels/reference/quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/reference/minifloat.h"
#include "kernels/reference/ops.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace nibble::kernels::reference {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMaxFloat = std::numeric_limits<float>::max();
constexpr Fp8 kFormats[] = {Fp8::kE4m3, Fp8::kE5m2};
constexpr Int8Range kRanges[] = {Int8Range::kSymmetric, Int8Range::kAsymmetric};

struct Int8Codes {
  Int8Scale scale;
  std::vector<int8_t> codes;

  double Value(size_t i) const {
    return static_cast<double>(scale.scale) * (codes[i] - scale.zero);
  }
};

Int8Codes Int8(const std::vector<float>& x, Int8Range range) {
  Int8Codes result{{}, std::vector<int8_t>(x.size(), 99)};
  result.scale = QuantizeInt8(x, range, result.codes.data());
  return result;
}

struct Fp8Codes {
  float scale = 0;
  std::vector<uint8_t> codes;
};

Fp8Codes Fp8Of(const std::vector<float>& x, Fp8 format) {
  Fp8Codes result{0, std::vector<uint8_t>(x.size(), 99)};
  result.scale = QuantizeFp8(x, format, result.codes.data());
  return result;
}

float Greatest(const std::vector<float>& x) {
  float greatest = 0;
  for (const float value : x) greatest = std::max(greatest, std::fabs(value));
  return greatest;
}

// Rows of all kinds: long, short, one-sided, of all sizes.
std::vector<std::vector<float>> Rows() {
  test::Random random(3);
  std::vector<std::vector<float>> rows;
  for (const int64_t k : {1, 2, 31, 32, 128, 257, 4096}) {
    for (const float deviation : {0x1p-95f, 1e-3f, 1.0f, 1e4f, 1e30f}) {
      rows.push_back(random.Normals(k, deviation));
      rows.push_back(rows.back());
      for (float& value : rows.back()) value = std::fabs(value);
      rows.push_back(rows.back());
      for (float& value : rows.back()) value = -value;
      rows.push_back(random.Normals(k, deviation));
      rows.back()[k / 2] *= 100;
    }
  }
  return rows;
}

TEST(QuantizeInt8, IsHalfAStepOffAtMost) {
  for (const auto& x : Rows()) {
    for (const Int8Range range : kRanges) {
      const Int8Codes q = Int8(x, range);
      const float least = std::min(0.0f, *std::ranges::min_element(x));
      const float greatest = std::max(0.0f, *std::ranges::max_element(x));
      const double step = range == Int8Range::kSymmetric
                              ? Greatest(x) / 127.0
                              : (static_cast<double>(greatest) - least) / 254.0;
      ASSERT_NEAR(q.scale.scale, step, step * 1e-6);
      for (size_t i = 0; i < x.size(); ++i) {
        // The reciprocal's error counts up to 254 times.
        ASSERT_NEAR(q.Value(i), x[i], step * 0.50005) << i;
      }
    }
  }
}

TEST(QuantizeInt8, UsesTheWholeRange) {
  const Int8Codes symmetric =
      Int8({-2.0f, 1.0f, 0.0f, 2.0f}, Int8Range::kSymmetric);
  EXPECT_THAT(symmetric.codes, ElementsAre(-127, 64, 0, 127));  // 63.5: a tie
  EXPECT_EQ(symmetric.scale.zero, 0);
  const Int8Codes positive = Int8({0, 254, 1, 2.5}, Int8Range::kAsymmetric);
  EXPECT_EQ(positive.scale.zero, -127);
  EXPECT_EQ(positive.scale.scale, 1);
  EXPECT_THAT(positive.codes, ElementsAre(-127, 127, -126, -124));
  const Int8Codes negative = Int8({-254, 0, -1}, Int8Range::kAsymmetric);
  EXPECT_EQ(negative.scale.zero, 127);
  EXPECT_THAT(negative.codes, ElementsAre(-127, 127, 126));
}

TEST(QuantizeInt8, RoundsTiesToEven) {
  EXPECT_THAT(
      Int8({127, 0.5, 1.5, 2.5, -0.5, -1.5}, Int8Range::kSymmetric).codes,
      ElementsAre(127, 0, 2, 2, 0, -2));
}

TEST(QuantizeInt8, GivesZerosForZeros) {
  for (const Int8Range range : kRanges) {
    const Int8Codes q = Int8({0.0f, -0.0f, 0.0f}, range);
    EXPECT_THAT(q.codes, Each(0));
    EXPECT_EQ(q.scale.zero, 0);
    EXPECT_EQ(q.scale.scale,
              kLeastMax / (range == Int8Range::kSymmetric ? 127 : 254));
  }
}

TEST(QuantizeInt8, TakesAnyFiniteNumbers) {
  EXPECT_THAT(Int8({kMaxFloat, -kMaxFloat}, Int8Range::kSymmetric).codes,
              ElementsAre(127, -127));
  EXPECT_TRUE(std::isnan(
      Int8({kMaxFloat, -kMaxFloat}, Int8Range::kAsymmetric).scale.scale));
  const Int8Codes tiny = Int8({1e-40f, -1e-42f}, Int8Range::kSymmetric);
  EXPECT_THAT(tiny.codes, Each(0));
}

TEST(QuantizeInt8, DoesNotHideNanAndInfinity) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    for (const Int8Range range : kRanges) {
      const Int8Codes q = Int8({1, bad, -2, 0}, range);
      EXPECT_TRUE(std::isnan(q.scale.scale)) << bad;
      EXPECT_EQ(q.scale.zero, 0);
      EXPECT_THAT(q.codes, Each(0));
    }
  }
}

TEST(QuantizeFp8, IsHalfAStepOffAtMost) {
  for (const auto& x : Rows()) {
    for (const Fp8 format : kFormats) {
      const Fp8Codes q = Fp8Of(x, format);
      const double step = format == Fp8::kE4m3 ? 0x1p-4 : 0x1p-3;
      const double least = format == Fp8::kE4m3 ? 0x1p-10 : 0x1p-17;
      for (size_t i = 0; i < x.size(); ++i) {
        const double value =
            static_cast<double>(Fp8ToFloat(q.codes[i], format)) * q.scale;
        ASSERT_NEAR(value, x[i],
                    std::max(step * std::fabs(x[i]), least * q.scale) * 1.00001)
            << i;
      }
      const auto greatest = std::ranges::max_element(
          x, {}, [](float value) { return std::fabs(value); });
      EXPECT_EQ(std::fabs(Fp8ToFloat(q.codes[greatest - x.begin()], format)),
                kernels::Greatest(format));
    }
  }
}

TEST(QuantizeFp8, GivesZerosForZeros) {
  for (const Fp8 format : kFormats) {
    const Fp8Codes q = Fp8Of({0.0f, -0.0f}, format);
    EXPECT_THAT(q.codes, ElementsAre(0, 0x80));  // zeros keep their sign
    EXPECT_EQ(q.scale, kLeastMax / kernels::Greatest(format));
  }
}

TEST(QuantizeFp8, DoesNotHideNanAndInfinity) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    for (const Fp8 format : kFormats) {
      const std::vector<float> x = {1, bad, -2, 0};
      const Fp8Codes q = Fp8Of(x, format);
      EXPECT_TRUE(std::isnan(q.scale)) << bad;
      EXPECT_THAT(q.codes, Each(0x7f));
      std::vector<uint8_t> codes(x.size());
      QuantizeFp8By(x, format, 0.5f, codes.data());
      EXPECT_THAT(codes, Each(0x7f));
      EXPECT_EQ(QuantizeMxFp8(x, format, codes.data()), 255);
      EXPECT_THAT(codes, Each(0x7f));
    }
  }
}

TEST(QuantizeFp8By, SaturatesAndFlushes) {
  const std::vector<float> x = {448,     464, -1000,    kMaxFloat,
                                0x1p-9f, 0,   0x1p-10f, 1};
  std::vector<uint8_t> codes(x.size());
  QuantizeFp8By(x, Fp8::kE4m3, 1, codes.data());
  EXPECT_THAT(codes,
              ElementsAre(0x7e, 0x7e, 0xfe, 0x7e, 0x01, 0x00, 0x00, 0x38));
  const Losses losses = CountLosses(x, Fp8::kE4m3, 1);
  EXPECT_EQ(losses.values, 8);
  EXPECT_EQ(losses.clipped, 3);
  EXPECT_EQ(losses.flushed, 1);
  EXPECT_EQ(CountLosses(std::vector{61439.0f, 61440.0f}, Fp8::kE5m2, 1).clipped,
            1);
}

TEST(QuantizeFp8By, CurrentScalesClipNothing) {
  Losses losses;
  for (const auto& x : Rows()) {
    for (const Fp8 format : kFormats) {
      losses += CountLosses(x, format, Fp8Of(x, format).scale);
    }
  }
  EXPECT_GT(losses.values, 100000);
  EXPECT_EQ(losses.clipped, 0);
}

TEST(QuantizeMxFp8, FollowsTheSpecification) {
  std::vector<uint8_t> codes(4);
  // Greatest power of two <= 7 is 4: 4 / 256 = 2^-6.
  EXPECT_EQ(QuantizeMxFp8(std::vector{7.0f, -4.0f, 0.5f, 0.0f}, Fp8::kE4m3,
                          codes.data()),
            121);
  EXPECT_EQ(E4m3ToFloat(codes[0]), 448);
  EXPECT_EQ(E4m3ToFloat(codes[1]), -256);
  EXPECT_EQ(E4m3ToFloat(codes[2]), 32);
  // 7.9 is clamped to the greatest number, as the specification has it.
  QuantizeMxFp8(std::vector{7.9f}, Fp8::kE4m3, codes.data());
  EXPECT_EQ(E4m3ToFloat(codes[0]), 448);
  EXPECT_EQ(QuantizeMxFp8(std::vector{1.0f}, Fp8::kE5m2, codes.data()), 112);
  EXPECT_EQ(E5m2ToFloat(codes[0]), 32768);
  EXPECT_EQ(QuantizeMxFp8(std::vector{0.0f}, Fp8::kE4m3, codes.data()), 19);
  EXPECT_EQ(codes[0], 0);
  EXPECT_EQ(QuantizeMxFp8(std::vector{kMaxFloat}, Fp8::kE4m3, codes.data()),
            127 + 127 - 8);
}

TEST(QuantizeQ8, SumsItsCodes) {
  test::Random random(5);
  const auto x = random.Normals(200);
  std::vector<int8_t> codes(x.size());
  std::vector<float> sums(7, kNan);
  const float scale = QuantizeQ8(x, codes.data(), sums.data());
  EXPECT_EQ(scale, Greatest(x) / 127);
  for (size_t block = 0; block < sums.size(); ++block) {
    int sum = 0;
    for (size_t i = 32 * block; i < std::min<size_t>(32 * block + 32, 200);
         ++i) {
      sum += codes[i];
    }
    EXPECT_EQ(sums[block], scale * static_cast<float>(sum));
  }
  // Beyond what FP16 sums can hold.
  const std::vector<float> large(32, 1e6f);
  QuantizeQ8(large, codes.data(), sums.data());
  EXPECT_NEAR(sums[0], 32e6, 4);
}

TEST(NormProducts, GiveRmsNorm) {
  constexpr int64_t kK = 1000;
  test::Random random(9);
  const auto x = random.Normals(kK, 30.0f);
  const auto weight = random.Normals(kK);
  std::vector<float> products(kK), expected(kK);
  const float factor = NormProducts(
      {.x = x, .weight = weight.data(), .eps = 1e-5f}, products.data());
  for (float& value : products) value *= factor;
  RmsNormRow(x.data(), weight.data(), 1e-5f, kK, expected.data());
  EXPECT_LT(test::RelativeError(products, expected), 1.5 * test::kEpsilonF32);
}

}  // namespace
}  // namespace nibble::kernels::reference
