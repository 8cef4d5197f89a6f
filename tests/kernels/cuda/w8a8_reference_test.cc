// The reference of the W8A8 kernels against sums by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/reference/minifloat.h"
#include "kernels/reference/w8a8_gemm.h"
#include "tests/support/random.h"

namespace nibble::kernels::reference {
namespace {

std::vector<uint8_t> RandomCodes(size_t count, uint64_t seed) {
  test::Random random(seed);
  std::vector<uint8_t> codes(count);
  for (uint8_t& code : codes) {
    do {
      code = static_cast<uint8_t>(random.Bits());
    } while ((code & 0x7f) == 0x7f);  // E4M3's NaN
  }
  return codes;
}

TEST(DotOfCodes, OfInt8WithZeroPointIsTheSumByHand) {
  // (3 - 10) * 2 + (-128 - 10) * -128 + (127 - 10) * 5
  const std::vector<uint8_t> x = {0, 0, 0, 3, 0x80, 127};
  const std::vector<uint8_t> w = {2, 0x80, 5};
  const std::vector<float> x_scales = {9, 0.5f}, w_scale = {3};
  const std::vector<int32_t> zeros = {0, 10};
  const CodedMatrix xs{.codes = x,
                       .k = 3,
                       .grid = {.scales = x_scales, .rows = 1, .row_step = 1},
                       .zeros = zeros};
  const CodedMatrix ws{.codes = w, .k = 3, .grid = {.scales = w_scale}};
  const CodedDot dot = DotOfCodes(xs, 1, ws, 0);
  EXPECT_EQ(dot.value, (-14 + 138 * 128 + 585) * 1.5);
  EXPECT_EQ(dot.magnitude, (14 + 138 * 128 + 585) * 1.5);
  EXPECT_EQ(DotOfCodes(xs, 0, ws, 0).value, 0);
}

TEST(DotOfCodes, OfE4m3IsThatOfItsNumbers) {
  constexpr int64_t kK = 300;
  const std::vector<uint8_t> x = RandomCodes(kK, 1), w = RandomCodes(kK, 2);
  const std::vector<float> one = {1};
  const CodedDot dot = DotOfCodes(
      {.type = CodeType::kE4m3, .codes = x, .k = kK, .grid = {.scales = one}},
      0,
      {.type = CodeType::kE4m3, .codes = w, .k = kK, .grid = {.scales = one}},
      0);
  double sum = 0;
  for (int64_t i = 0; i < kK; ++i) {
    sum += double{E4m3ToFloat(x[i])} * E4m3ToFloat(w[i]);
  }
  EXPECT_EQ(dot.value, sum);
}

TEST(DotOfCodes, TakesTheScaleOfEachBlock) {
  constexpr int64_t kK = 300;  // three blocks of 128, the last one short
  const std::vector<uint8_t> x = RandomCodes(2 * kK, 3);
  const std::vector<uint8_t> w = RandomCodes(130 * kK, 4);
  // x: [block of k][row, of 4]; w: [block of rows][block of k]
  const std::vector<float> x_scales = {1, 2, 0, 0, 3, 5, 0, 0, 7, 11, 0, 0};
  const std::vector<float> w_scales = {13, 17, 19, 23, 29, 31};
  const CodedMatrix xs{.type = CodeType::kE4m3,
                       .codes = x,
                       .k = kK,
                       .grid = {.scales = x_scales,
                                .rows = 1,
                                .ks = 128,
                                .row_step = 1,
                                .k_step = 4}};
  const CodedMatrix ws{.type = CodeType::kE4m3,
                       .codes = w,
                       .k = kK,
                       .grid = {.scales = w_scales,
                                .rows = 128,
                                .ks = 128,
                                .row_step = 3,
                                .k_step = 1}};
  double expected = 0, magnitude = 0;
  for (int64_t i = 0; i < kK; ++i) {
    const double x_scale = x_scales[i / 128 * 4 + 1];
    const double product = x_scale * w_scales[3 + i / 128] *
                           double{E4m3ToFloat(x[kK + i])} *
                           E4m3ToFloat(w[129 * kK + i]);
    expected += product;
    magnitude += std::fabs(product);
  }
  const CodedDot dot = DotOfCodes(xs, 1, ws, 129);
  EXPECT_NEAR(dot.value, expected, 1e-12 * magnitude);
  EXPECT_NEAR(dot.magnitude, magnitude, 1e-12 * magnitude);
}

// Groups of W [block of k][row, of 4], one scale a token, which has a zero
// point.
TEST(DotOfCodes, TakesTheScaleOfEachGroupOfW) {
  constexpr int64_t kK = 300;
  const std::vector<uint8_t> x = RandomCodes(2 * kK, 5);
  const std::vector<uint8_t> w = RandomCodes(3 * kK, 6);
  const std::vector<float> x_scales = {1, 0.5f};
  const std::vector<float> w_scales = {1, 2, 3, 0, 5, 7, 11, 0, 13, 17, 19, 0};
  const std::vector<int32_t> zeros = {0, -100};
  const CodedMatrix xs{.codes = x,
                       .k = kK,
                       .grid = {.scales = x_scales, .rows = 1, .row_step = 1},
                       .zeros = zeros};
  const CodedMatrix ws{.codes = w,
                       .k = kK,
                       .grid = {.scales = w_scales,
                                .rows = 1,
                                .ks = 128,
                                .row_step = 1,
                                .k_step = 4}};
  double expected = 0, magnitude = 0;  // exact: halves of integers
  for (int64_t i = 0; i < kK; ++i) {
    const double product = 0.5 * w_scales[i / 128 * 4 + 2] *
                           (static_cast<int8_t>(x[kK + i]) + 100) *
                           static_cast<int8_t>(w[2 * kK + i]);
    expected += product;
    magnitude += std::fabs(product);
  }
  const CodedDot dot = DotOfCodes(xs, 1, ws, 2);
  EXPECT_EQ(dot.value, expected);
  EXPECT_EQ(dot.magnitude, magnitude);
}

TEST(DotOfCodes, IsNanWhereACodeIs) {
  const std::vector<uint8_t> x = {0x7f, 0x38}, w = {0, 0x38};
  const std::vector<float> one = {1};
  EXPECT_TRUE(std::isnan(DotOfCodes({.type = CodeType::kE4m3,
                                     .codes = x,
                                     .k = 2,
                                     .grid = {.scales = one}},
                                    0,
                                    {.type = CodeType::kE4m3,
                                     .codes = w,
                                     .k = 2,
                                     .grid = {.scales = one}},
                                    0)
                             .value));
}

}  // namespace
}  // namespace nibble::kernels::reference
