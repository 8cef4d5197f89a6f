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
    ASSERT_LT(shape, kWalkingShape);
    ASSERT_LE(k, kRowShapes[shape].MaxK());
    // None before it would do.
    ASSERT_GT(k, shape == 0 ? 0 : kRowShapes[shape - 1].MaxK());
  }
}

DeviceInfo DeviceOf(int multiprocessors, int64_t shared_memory_bytes) {
  DeviceInfo device;
  device.multiprocessors = multiprocessors;
  device.shared_memory_bytes = shared_memory_bytes;
  return device;
}

TEST(BestRowShape, WalksWhereRowsOutnumberCtas) {
  const DeviceInfo device = DeviceOf(132, 232'448);
  for (const QuantizeOp op : {QuantizeOp::kPlain, QuantizeOp::kNorm}) {
    EXPECT_EQ(BestRowShape({.op = op, .m = 528, .k = 4096}, device), 0);
    EXPECT_EQ(BestRowShape({.op = op, .m = 529, .k = 4096}, device),
              kWalkingShape);
    // Four short rows share a CTA.
    EXPECT_EQ(BestRowShape({.op = op, .m = 2112, .k = 128}, device), 0);
    EXPECT_EQ(BestRowShape({.op = op, .m = 2113, .k = 128}, device),
              kWalkingShape);
    EXPECT_EQ(BestRowShape({.op = op, .m = 133, .k = 16384}, device),
              kWalkingShape);
    EXPECT_EQ(BestRowShape({.op = op, .m = 4096, .k = 16392}, device), 1);
  }
}

TEST(BestRowShape, WalksOnlyWhereAKernelCan) {
  const DeviceInfo device = DeviceOf(132, 232'448);
  for (const QuantizeArgs& args :
       {QuantizeArgs{.op = QuantizeOp::kSiluMul, .m = 4096, .k = 4096},
        QuantizeArgs{.op = QuantizeOp::kAddNorm, .m = 4096, .k = 4096},
        QuantizeArgs{.dtype = DType::kF32, .m = 4096, .k = 4096}}) {
    EXPECT_EQ(BestRowShape(args, device), 0);
    EXPECT_FALSE(HasRowShape(args, kWalkingShape, device));
  }
}

// Six stages of 32 KB do not fit every device.
TEST(BestRowShape, WalksOnlyWhereStagesFit) {
  const QuantizeArgs args{.m = 4096, .k = 16384};
  EXPECT_EQ(BestRowShape(args, DeviceOf(108, 166'912)), 0);
  EXPECT_FALSE(HasRowShape(args, kWalkingShape, DeviceOf(108, 166'912)));
  EXPECT_EQ(BestRowShape(args, DeviceOf(132, 232'448)), kWalkingShape);
}

}  // namespace
}  // namespace nibble::kernels::cuda
