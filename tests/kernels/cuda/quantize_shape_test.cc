// Which shapes the activation quantizers take. Needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "kernels/cuda/quantize/quantize.h"
#include "kernels/cuda/quantize/row_shape.h"

namespace nibble::kernels::cuda {
namespace {

using ::testing::HasSubstr;

std::string Refusal(int64_t m, int64_t k) {
  return std::string(CheckQuantizeShape(m, k).message());
}

TEST(CheckQuantizeShape, TakesMultiplesOfEight) {
  for (const int64_t k : {8, 16, 576, 4096, 14336, 65536}) {
    EXPECT_TRUE(CheckQuantizeShape(0, k).ok()) << k;
    EXPECT_TRUE(CheckQuantizeShape(2147483647, k).ok()) << k;
  }
}

TEST(CheckQuantizeShape, NamesWhatItRefuses) {
  EXPECT_THAT(Refusal(1, 100), HasSubstr("rows of 100 "));
  EXPECT_THAT(Refusal(1, 0), HasSubstr("rows of 0 "));
  EXPECT_THAT(Refusal(1, -8), HasSubstr("rows of -8 "));
  EXPECT_THAT(Refusal(1, 65544), HasSubstr("rows of 65544 "));
  EXPECT_THAT(Refusal(-1, 8), HasSubstr("-1 rows"));
  EXPECT_THAT(Refusal(2147483648, 8), HasSubstr("2147483648 rows"));
}

TEST(RowShapeFor, HoldsTheRow) {
  for (int64_t k = 8; k <= kMaxQuantizeK; k += 8) {
    const int shape = RowShapeFor(k);
    ASSERT_LT(shape, kNumRowShapes);
    ASSERT_LE(k, kRowShapes[shape].MaxK());
    // None before it would do.
    ASSERT_GT(k, shape == 0 ? 0 : kRowShapes[shape - 1].MaxK());
  }
}

}  // namespace
}  // namespace nibble::kernels::cuda
