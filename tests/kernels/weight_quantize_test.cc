#include "kernels/weight_quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/activation_codes.h"
#include "kernels/quant_format.h"
#include "kernels/reference/half.h"
#include "kernels/reference/minifloat.h"
#include "kernels/reference/quantize.h"
#include "tests/support/quantize.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace nibble::kernels {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr ByteCode kCodes[] = {ByteCode::kInt8, ByteCode::kE4m3};
constexpr ByteScaling kScalings[] = {ByteScaling::kTensor,
                                     ByteScaling::kChannel, ByteScaling::kGroup,
                                     ByteScaling::kBlock};
struct Shape {
  int64_t n, k;
};
constexpr Shape kShapes[] = {{1, 1},     {3, 7},     {128, 128}, {129, 127},
                             {127, 257}, {260, 384}, {5, 1000}};

std::vector<float> Dequantized(const ByteWeight& weight) {
  std::vector<float> w(weight.n * weight.k);
  for (int64_t row = 0; row < weight.n; ++row) {
    weight.DequantizeRow(row, w.data() + row * weight.k);
  }
  return w;
}

double Error(const std::vector<float>& w, const ByteWeight& weight) {
  return test::RelativeError(Dequantized(weight), w);
}

// The greatest magnitude of the weights that share a scale with (row, col).
float TileMax(const std::vector<float>& w, Shape shape, ByteScaling scaling,
              int64_t row, int64_t col) {
  const bool all_rows = scaling == ByteScaling::kTensor;
  const bool all_cols = all_rows || scaling == ByteScaling::kChannel;
  const bool block = scaling == ByteScaling::kBlock;
  float greatest = 0;
  for (int64_t i = 0; i < shape.n; ++i) {
    for (int64_t j = 0; j < shape.k; ++j) {
      const bool same_row =
          all_rows || (block ? i / 128 == row / 128 : i == row);
      const bool same_col = all_cols || j / 128 == col / 128;
      if (same_row && same_col) {
        greatest = std::max(greatest, std::fabs(w[i * shape.k + j]));
      }
    }
  }
  return greatest;
}

TEST(QuantizeWeight, ScalesComeFromTheGreatestOfTheirTile) {
  test::Random random(2);
  for (const Shape shape : kShapes) {
    const auto w = random.Normals(shape.n * shape.k);
    for (const ByteCode code : kCodes) {
      const float greatest = code == ByteCode::kInt8 ? 127 : 448;
      for (const ByteScaling scaling : kScalings) {
        const ByteWeight q =
            QuantizeWeight(w, shape.n, shape.k,
                           {.code = code, .scaling = scaling, .search = false})
                .value();
        const ScaleShape scales = ScaleShape::Of(scaling, shape.n, shape.k);
        ASSERT_EQ(static_cast<int64_t>(q.scales.size()), scales.count());
        for (int64_t i = 0; i < scales.rows; ++i) {
          for (int64_t j = 0; j < scales.cols; ++j) {
            ASSERT_EQ(q.scales[i * scales.cols + j],
                      TileMax(w, shape, scaling, i * scales.tile_rows,
                              j * scales.tile_cols) /
                          greatest);
          }
        }
      }
    }
  }
}

TEST(QuantizeWeight, CodesAreThoseOfTheReference) {
  test::Random random(3);
  constexpr int64_t kK = 300;
  const auto w = random.Normals(kK);
  std::vector<uint8_t> codes(kK);
  const ByteWeight fp8 =
      QuantizeWeight(w, 1, kK, {.code = ByteCode::kE4m3}).value();
  reference::QuantizeFp8By(w, Fp8::kE4m3, fp8.scales[0], codes.data());
  EXPECT_EQ(fp8.codes, codes);
  const ByteWeight int8 = QuantizeWeight(w, 1, kK, {.search = false}).value();
  reference::QuantizeInt8(w, Int8Range::kSymmetric,
                          reinterpret_cast<int8_t*>(codes.data()));
  int different = 0;  // 127 / max and 1 / (max / 127) may round differently
  for (int64_t i = 0; i < kK; ++i) {
    const int off = std::abs(static_cast<int8_t>(int8.codes[i]) -
                             static_cast<int8_t>(codes[i]));
    ASSERT_LE(off, 1);
    different += off;
  }
  EXPECT_LE(different, 1);
}

TEST(QuantizeWeight, IsAsCloseAsItsFormat) {
  test::Random random(4);
  constexpr int64_t kN = 256, kK = 1024;
  const auto w = random.Normals(kN * kK, 0.02f);
  for (const ByteScaling scaling : kScalings) {
    const auto error = [&](ByteCode code, bool search) {
      return Error(w, QuantizeWeight(
                          w, kN, kK,
                          {.code = code, .scaling = scaling, .search = search})
                          .value());
    };
    // Of normal weights: step / sqrt(12), the greatest of 262,144 being 4.6
    // times the deviation.
    EXPECT_LT(error(ByteCode::kInt8, false), 5.2 / 127 / std::sqrt(12.0));
    EXPECT_LT(error(ByteCode::kE4m3, false), 0.028);
    for (const ByteCode code : kCodes) {
      EXPECT_LE(error(code, true), error(code, false));
    }
  }
}

// One weight far from the rest: to clip it is better than to round all others
// coarsely, where its own error does not count for more.
TEST(QuantizeWeight, SearchClipsOutliers) {
  test::Random random(5);
  constexpr int64_t kK = 16384;
  auto w = random.Normals(kK);
  w[77] = 6;
  const ByteWeight plain = QuantizeWeight(w, 1, kK, {.search = false}).value();
  const ByteWeight searched = QuantizeWeight(w, 1, kK, {}).value();
  EXPECT_EQ(plain.scales[0], 6.0f / 127);
  EXPECT_LT(searched.scales[0], 0.96f * plain.scales[0]);
  EXPECT_LT(Error(w, searched), 0.98 * Error(w, plain));
  EXPECT_EQ(searched.codes[77], 127);
}

TEST(QuantizeWeight, SearchesEachTileAlone) {
  test::Random random(6);
  constexpr int64_t kN = 256, kK = 256;
  auto w = random.Normals(kN * kK);
  w[130 * kK + 5] = 6;  // tile (1, 0)
  const auto quantize = [&](bool search) {
    return QuantizeWeight(w, kN, kK,
                          {.code = ByteCode::kInt8,
                           .scaling = ByteScaling::kBlock,
                           .search = search})
        .value();
  };
  const ByteWeight plain = quantize(false), searched = quantize(true);
  EXPECT_LT(searched.scales[2], plain.scales[2]);
  for (const int64_t tile : {0, 1, 3}) {
    const int64_t row = tile / 2 * 128, col = tile % 2 * 128;
    std::vector<float> alone;
    for (int64_t i = 0; i < 128; ++i) {
      const auto begin = w.begin() + (row + i) * kK + col;
      alone.insert(alone.end(), begin, begin + 128);
    }
    const ByteWeight one =
        QuantizeWeight(alone, 128, 128, {.scaling = ByteScaling::kTensor})
            .value();
    EXPECT_EQ(one.scales[0], searched.scales[tile]);
    EXPECT_EQ(one.codes[128], searched.codes[(row + 1) * kK + col]);
  }
}

TEST(QuantizeWeight, GivesZerosForZeros) {
  for (const ByteCode code : kCodes) {
    const ByteWeight q =
        QuantizeWeight(std::vector<float>(256, 0.0f), 2, 128, {.code = code})
            .value();
    EXPECT_THAT(q.codes, Each(0));
    for (const float scale : q.scales) EXPECT_TRUE(std::isnormal(scale));
    EXPECT_THAT(Dequantized(q), Each(0.0f));
  }
}

TEST(QuantizeWeight, TakesAnyFormat) {
  test::Random random(7);
  for (const QuantFormat format :
       {QuantFormat::kBF16, QuantFormat::kQ4_K, QuantFormat::kQ8_0}) {
    const test::TestWeight weight = test::RandomWeight(format, 5, 512, random);
    const std::vector<float> w = weight.Dequantized();
    const ByteWeight q =
        QuantizeWeight(weight.View(), {.scaling = ByteScaling::kGroup}).value();
    const ByteWeight same =
        QuantizeWeight(w, 5, 512, {.scaling = ByteScaling::kGroup}).value();
    EXPECT_EQ(q.codes, same.codes);
    EXPECT_EQ(q.scales, same.scales);
    EXPECT_LT(Error(w, q), 0.01);
  }
}

TEST(QuantizeWeight, NamesWhatItRefuses) {
  std::vector<float> w(12, 1.0f);
  EXPECT_THAT(std::string(QuantizeWeight(w, 3, 5, {}).status().message()),
              HasSubstr("12 weights as a matrix [3, 5]"));
  EXPECT_FALSE(QuantizeWeight({}, 0, 0, {}).ok());
  w[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(std::string(QuantizeWeight(w, 3, 4, {}).status().message()),
              HasSubstr("row 1 holds nan"));
  w[7] = -std::numeric_limits<float>::infinity();
  EXPECT_THAT(std::string(QuantizeWeight(w, 3, 4, {}).status().message()),
              HasSubstr("row 1 holds -inf"));
}

// A checkpoint's arrays, one byte off alignment.
struct Checkpoint {
  std::vector<std::byte> data, scales;
  ByteWeightView view;

  Checkpoint(ByteCode code, ByteScaling scaling, Shape shape, DType dtype,
             const std::vector<uint8_t>& codes,
             const std::vector<float>& values) {
    data.resize(codes.size() + 1);
    std::memcpy(data.data() + 1, codes.data(), codes.size());
    scales.resize(1);
    for (const float value : values) {
      uint32_t bits = std::bit_cast<uint32_t>(value);
      if (dtype == DType::kF16) bits = reference::FloatToHalf(value);
      if (dtype == DType::kBF16) bits = reference::FloatToBFloat16(value);
      for (int i = 0; i < ElementBytes(dtype); ++i) {
        scales.push_back(static_cast<std::byte>(bits >> (8 * i)));
      }
    }
    view = {.name = "w",
            .code = code,
            .scaling = scaling,
            .n = shape.n,
            .k = shape.k,
            .data = data.data() + 1,
            .scales = scales.data() + 1,
            .scale_dtype = dtype};
  }
};

TEST(ReadByteWeight, TakesCodesAndScalesAsTheyAre) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Checkpoint file(ByteCode::kE4m3, ByteScaling::kBlock, {129, 2}, dtype,
                          std::vector<uint8_t>(258, 0xb8), {0.5f, 3.0f});
    const ByteWeight weight = ReadByteWeight(file.view).value();
    EXPECT_THAT(weight.codes, Each(0xb8));
    EXPECT_THAT(weight.scales, ElementsAre(0.5f, 3.0f));
    const std::vector<float> w = Dequantized(weight);
    EXPECT_EQ(w[2 * 127], -0.5f);
    EXPECT_EQ(w[2 * 128], -3.0f);
  }
  const Checkpoint file(ByteCode::kInt8, ByteScaling::kChannel, {2, 2},
                        DType::kF32, {0x80, 0x7f, 1, 0xff}, {2.0f, 0.0f});
  EXPECT_THAT(Dequantized(ReadByteWeight(file.view).value()),
              ElementsAre(-256.0f, 254.0f, 0.0f, -0.0f));
}

TEST(ReadByteWeight, NamesWhatItRefuses) {
  const auto refusal = [](ByteCode code, const std::vector<uint8_t>& codes,
                          const std::vector<float>& scales) {
    const Checkpoint file(code, ByteScaling::kChannel, {2, 2}, DType::kF32,
                          codes, scales);
    return std::string(ReadByteWeight(file.view).status().message());
  };
  EXPECT_EQ(refusal(ByteCode::kE4m3, {0, 0, 0, 0xff}, {1, 1}),
            "w: weight [1, 1] is E4M3's NaN");
  EXPECT_EQ(refusal(ByteCode::kInt8, {0, 0, 0, 0xff}, {1, -1}),
            "w: scale 1 is -1");
  EXPECT_EQ(refusal(ByteCode::kInt8, {0, 0, 0, 0},
                    {std::numeric_limits<float>::infinity(), 1}),
            "w: scale 0 is inf");
  EXPECT_EQ(refusal(ByteCode::kInt8, {0, 0, 0, 0},
                    {std::numeric_limits<float>::quiet_NaN(), 1}),
            "w: scale 0 is nan");
  ByteWeightView empty{.name = "w", .n = 0, .k = 4};
  EXPECT_EQ(ReadByteWeight(empty).status().message(), "w: a matrix [0, 4]");
}

}  // namespace
}  // namespace nibble::kernels
