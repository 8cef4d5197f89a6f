// Activations in 8 bits on the GPU against the scalar reference.
#include "kernels/cuda/quantize/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cuda/quantize/row_shape.h"
#include "kernels/cuda/runtime.h"
#include "tests/kernels/cuda/quantize_harness.h"
#include "tests/kernels/cuda/w4_harness.h"

namespace nibble::test {
namespace {

using kernels::DType;
using kernels::Fp8;
using kernels::Int8Range;
using kernels::cuda::DeviceBuffer;
using kernels::cuda::kNumRowShapes;
using kernels::cuda::kRowShapes;
using kernels::cuda::QuantizeArgs;
using kernels::cuda::QuantizeCode;
using kernels::cuda::QuantizeOp;
using kernels::cuda::Stream;

// Of every shape of kRowShapes the shortest rows, the longest, and such as
// end within a warp, a block of 128 or a group of 256; and of models.
constexpr int64_t kWidths[] = {8,    16,    24,    120,   128,   136,  256,
                               576,  896,   1000,  1536,  2048,  4096, 4104,
                               8192, 14336, 16384, 16392, 18944, 32768};

class Quantize : public GpuTest {};

TEST_F(Quantize, AgreesWithTheReference) {
  for (const int64_t k : kWidths) {
    const int64_t m = k <= 4096 ? 7 : 2;
    for (const QuantizeCase& c : AllQuantizeCases(m, k)) {
      const QuantizeInputs inputs = QuantizeInputs::Make(c, k + 1);
      EXPECT_EQ(CheckQuantized(c, inputs, RunQuantize(c, inputs)), "")
          << c.ToString();
    }
  }
}

TEST_F(Quantize, TakesTheLongestRows) {
  for (const int64_t k : {int64_t{32776}, int64_t{53248}, int64_t{65536}}) {
    for (const QuantizeCase& c : AllQuantizeCases(1, k)) {
      const QuantizeInputs inputs = QuantizeInputs::Make(c, 3);
      EXPECT_EQ(CheckQuantized(c, inputs, RunQuantize(c, inputs)), "")
          << c.ToString();
    }
  }
}

TEST_F(Quantize, TakesAnyNumberOfRows) {
  for (const int64_t k : {int64_t{128}, int64_t{1160}}) {
    for (const int64_t m : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{5},
                            int64_t{127}, 260'000 / k}) {
      for (const QuantizeCase& c : AllQuantizeCases(m, k)) {
        if (c.dtype != DType::kBF16) continue;
        const QuantizeInputs inputs = QuantizeInputs::Make(c, m);
        EXPECT_EQ(CheckQuantized(c, inputs, RunQuantize(c, inputs)), "")
            << c.ToString();
      }
    }
  }
}

TEST_F(Quantize, NoRowsAreANoOp) {
  const Stream stream;
  kernels::cuda::LaunchQuantize({.k = 8}, Runner::Get().device(), stream);
  stream.Synchronize();
}

// Norms excepted: their factor is a sum in another order.
TEST_F(Quantize, SpreadsRowsInAnyWay) {
  for (const int64_t k : {int64_t{264}, int64_t{4096}}) {
    for (const QuantizeCase& c : AllQuantizeCases(3, k)) {
      const QuantizeInputs inputs = QuantizeInputs::Make(c, 5);
      const QuantizeResult expected = RunQuantize(c, inputs);
      for (int shape = 0; shape < kNumRowShapes; ++shape) {
        if (kRowShapes[shape].MaxK() < k) continue;
        const QuantizeResult result = RunQuantize(c, inputs, {.shape = shape});
        EXPECT_EQ(CheckQuantized(c, inputs, result), "")
            << c.ToString() << " " << shape;
        if (!c.IsNorm()) {
          EXPECT_TRUE(result == expected) << c.ToString() << " " << shape;
        }
      }
    }
  }
}

TEST_F(Quantize, RowsDoNotDependOnEachOther) {
  for (const QuantizeCase& c : AllQuantizeCases(37, 520)) {
    const QuantizeInputs inputs = QuantizeInputs::Make(c, 8);
    const QuantizeResult all = RunQuantize(c, inputs);
    for (const int64_t row : {0, 5, 36}) {
      const auto row_of = [&](const std::vector<float>& values) {
        return values.empty()
                   ? values
                   : std::vector<float>(values.begin() + row * c.k,
                                        values.begin() + (row + 1) * c.k);
      };
      QuantizeInputs alone = inputs;
      alone.x = row_of(inputs.x);
      alone.up = row_of(inputs.up);
      alone.residual = row_of(inputs.residual);
      QuantizeCase one = c;
      one.m = 1;
      const QuantizeResult result = RunQuantize(one, alone);
      EXPECT_TRUE(std::equal(result.codes.begin(), result.codes.end(),
                             all.codes.begin() + row * c.k))
          << c.ToString() << " row " << row;
    }
  }
}

TEST_F(Quantize, AHundredRunsAgree) {
  for (const QuantizeOp op :
       {QuantizeOp::kNorm, QuantizeOp::kAddNorm, QuantizeOp::kSiluMul}) {
    for (const QuantizeCode code :
         {QuantizeCode::kInt8Token, QuantizeCode::kFp8Tensor,
          QuantizeCode::kFp8Block, QuantizeCode::kQ8}) {
      const QuantizeCase c{.op = op, .code = code, .m = 33, .k = 4096};
      const QuantizeInputs inputs = QuantizeInputs::Make(c, 2);
      const QuantizeResult expected = RunQuantize(c, inputs);
      ASSERT_EQ(CheckQuantized(c, inputs, expected), "") << c.ToString();
      for (int run = 0; run < 100; ++run) {
        ASSERT_TRUE(RunQuantize(c, inputs, {.overlap = run % 2 == 1}) ==
                    expected)
            << c.ToString() << " run " << run;
      }
    }
  }
}

TEST_F(Quantize, DoesNotHideNanAndInfinity) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const QuantizeCase& c : AllQuantizeCases(6, 1544)) {
    QuantizeInputs inputs = QuantizeInputs::Make(c, 4);
    // A different place in each row; row 4 stays as it is.
    const float bad[] = {kNan, kInfinity, -kInfinity, kNan, 1.0f, kInfinity};
    for (int64_t row = 0; row < c.m; ++row) {
      if (row == 4) continue;
      inputs.x[row * c.k + row * 300] = bad[row];
    }
    EXPECT_EQ(CheckQuantized(c, inputs, RunQuantize(c, inputs)), "")
        << c.ToString();
  }
}

TEST_F(Quantize, TakesExtremeNumbers) {
  for (const QuantizeCase& c : AllQuantizeCases(4, 512)) {
    if (c.op == QuantizeOp::kSiluMul || c.dtype == DType::kF16) continue;
    QuantizeInputs inputs = QuantizeInputs::Make(c, 6);
    const float factors[] = {0x1p-60f, 0x1p-110f, 0x1p50f, 0x1p58f};
    for (int64_t i = 0; i < c.m * c.k; ++i) inputs.x[i] *= factors[i / c.k];
    EXPECT_EQ(CheckQuantized(c, inputs, RunQuantize(c, inputs)), "")
        << c.ToString();
  }
}

// What a sum of squares cannot hold is a NaN, not a zero.
TEST_F(Quantize, NormsBeyondFp32AreNan) {
  QuantizeCase c{.op = QuantizeOp::kNorm, .m = 1, .k = 64};
  for (const QuantizeCode code :
       {QuantizeCode::kInt8Token, QuantizeCode::kFp8Token,
        QuantizeCode::kFp8Block, QuantizeCode::kQ8}) {
    c.code = code;
    QuantizeInputs inputs = QuantizeInputs::Make(c, 6);
    for (float& x : inputs.x) x = 0x1p70f;
    const QuantizeResult result = RunQuantize(c, inputs);
    EXPECT_EQ(result.problem, "");
    for (const float scale : result.scales) EXPECT_TRUE(std::isnan(scale));
  }
}

// Codes and inputs beyond 2^31 bytes and elements: the last rows of many.
TEST_F(Quantize, CountsIn64Bits) {
  constexpr int64_t kK = 16384;
  constexpr int64_t kM = 140'001;  // 2.3e9 codes
  constexpr int64_t kBytes = kM * kK * 2;
  auto x = DeviceBuffer::Make(kBytes);
  auto codes = DeviceBuffer::Make(kM * kK);
  auto scales = DeviceBuffer::Make(4 * kM);
  if (!x.ok() || !codes.ok() || !scales.ok()) {
    GTEST_SKIP() << "needs 7 GB of device memory";
  }
  const QuantizeCase c{.m = 3, .k = kK};
  const QuantizeInputs inputs = QuantizeInputs::Make(c, 11);
  const QuantizeResult expected = RunQuantize(c, inputs);
  ASSERT_EQ(CheckQuantized(c, inputs, expected), "");
  const auto bits = Encode(c.dtype, inputs.x);
  const int64_t first = kM - c.m;
  NIBBLE_CUDA_CHECK(cudaMemset(x->data(), 0, kBytes));
  NIBBLE_CUDA_CHECK(cudaMemcpy(x->data() + first * kK * 2, bits.data(),
                               bits.size(), cudaMemcpyHostToDevice));
  NIBBLE_CUDA_CHECK(cudaDeviceSynchronize());
  const Stream stream;
  kernels::cuda::LaunchQuantize({.x = x->data(),
                                 .ldx = kK,
                                 .m = kM,
                                 .k = kK,
                                 .codes = codes->data(),
                                 .ldc = kK,
                                 .scales = scales->as<float>()},
                                Runner::Get().device(), stream);
  stream.Synchronize();
  std::vector<uint8_t> tail(expected.codes.size());
  NIBBLE_CUDA_CHECK(cudaMemcpy(tail.data(), codes->data() + first * kK,
                               tail.size(), cudaMemcpyDeviceToHost));
  EXPECT_EQ(tail, expected.codes);
  std::vector<float> tail_scales(3);
  NIBBLE_CUDA_CHECK(cudaMemcpy(tail_scales.data(), scales->as<float>() + first,
                               12, cudaMemcpyDeviceToHost));
  EXPECT_EQ(tail_scales, expected.scales);
}

}  // namespace
}  // namespace nibble::test
