// The formats with arrays of their own, against numbers worked out by hand
// from their specifications.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/reference/dequant.h"
#include "kernels/reference/half.h"
#include "kernels/reference/minifloat.h"
#include "tests/support/minifloat.h"
#include "tests/support/quantize_groups.h"

namespace nibble::kernels::reference {
namespace {

using test::GroupSpec;
using test::GroupWeight;
using testing::ElementsAre;
using testing::ElementsAreArray;

template <typename T>
const std::byte* Bytes(const std::vector<T>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}

std::vector<float> Row(const WeightView& weight, int64_t row) {
  std::vector<float> out(static_cast<size_t>(weight.k));
  DequantizeRow(weight, row, out.data());
  return out;
}

std::vector<uint16_t> Halves(const std::vector<float>& values) {
  std::vector<uint16_t> halves;
  for (const float value : values) halves.push_back(FloatToHalf(value));
  return halves;
}

TEST(DequantGroups, Int4IsScaleTimesCodePlusMinimum) {
  const std::vector<uint8_t> codes = {0x10, 0xf2, 0x21, 0x0f};
  const auto scales = Halves({2, -0.5});
  const auto minimums = Halves({-3, 0.25});
  WeightView w{.name = "w",
               .format = QuantFormat::kInt4,
               .n = 2,
               .k = 4,
               .data = Bytes(codes),
               .group_elements = 4,
               .scales = Bytes(scales),
               .zeros_or_mins = Bytes(minimums)};
  EXPECT_THAT(Row(w, 0), ElementsAre(-3, -1, 1, 27));
  EXPECT_THAT(Row(w, 1), ElementsAre(-0.25, -0.75, -7.25, 0.25));
  w.format = QuantFormat::kInt4Sym;
  EXPECT_THAT(Row(w, 0), ElementsAre(-16, -14, -12, 14));
  EXPECT_THAT(Row(w, 1), ElementsAre(3.5, 3, -3.5, 4));
}

TEST(DequantGroups, BFloat16ScalesAndAPartialGroup) {
  const std::vector<uint8_t> codes(17, 0x99);
  const std::vector<uint16_t> scales = {0x4000, 0x7f00};  // 2, 2^127
  const WeightView w{.name = "w",
                     .format = QuantFormat::kInt4Sym,
                     .n = 1,
                     .k = 34,
                     .data = Bytes(codes),
                     .group_elements = 32,
                     .scales = Bytes(scales),
                     .scale_dtype = DType::kBF16};
  std::vector<float> expected(34, 2.0f);
  expected[32] = expected[33] = 0x1p127f;
  EXPECT_EQ(Row(w, 0), expected);
}

TEST(DequantGroups, AwqInterleavesRows) {
  // Nibble i is i: rows 0, 2, 4, 6, 1, 3, 5, 7 have codes 0 .. 7.
  std::vector<uint32_t> codes(64, 0x76543210);
  const std::vector<uint32_t> zeros = {0x00000000, 0xf0000001};
  auto scales = Halves(std::vector<float>(16, 1.0f));
  scales[8] = FloatToHalf(0.5f);  // row 0 of group 1
  const WeightView w{.name = "w",
                     .format = QuantFormat::kAwq,
                     .n = 8,
                     .k = 64,
                     .data = Bytes(codes),
                     .group_elements = 32,
                     .scales = Bytes(scales),
                     .zeros_or_mins = Bytes(zeros)};
  const std::array<float, 8> code_of_row = {0, 4, 1, 5, 2, 6, 3, 7};
  for (int row = 0; row < 8; ++row) {
    const std::vector<float> weights = Row(w, row);
    EXPECT_EQ(weights[0], code_of_row[row]);
    EXPECT_EQ(weights[31], code_of_row[row]);
    const float expected = row == 0   ? -0.5f
                           : row == 7 ? 7.0f - 15
                                      : code_of_row[row];
    EXPECT_EQ(weights[32], expected) << row;
  }
}

TEST(DequantGroups, GptqPacksColumnsAndAddsOneToItsZeros) {
  // Column j of every row has code j % 8, but row 9's: 15.
  std::vector<uint32_t> codes(4 * 16, 0x76543210);
  codes[9] = 0xffffffff;
  const std::vector<uint32_t> zeros = {0x76543210, 0xfedcba98};
  const auto scales = Halves(std::vector<float>(16, 2.0f));
  WeightView w{.name = "w",
               .format = QuantFormat::kGptq,
               .n = 16,
               .k = 32,
               .data = Bytes(codes),
               .group_elements = 32,
               .scales = Bytes(scales),
               .zeros_or_mins = Bytes(zeros)};
  EXPECT_EQ(Row(w, 3)[5], 2.0f * (5 - 4));
  EXPECT_EQ(Row(w, 9)[7], 2.0f * (15 - 10));
  EXPECT_EQ(Row(w, 9)[8], 2.0f * (0 - 10));
  EXPECT_EQ(Row(w, 15)[31], 2.0f * (7 - 16));
  w.gptq_zeros = GptqZeros::kPlain;
  EXPECT_EQ(Row(w, 0)[1], 2.0f * 1);
  EXPECT_EQ(Row(w, 15)[31], 2.0f * (7 - 15));
}

TEST(DequantGroups, GptqFindsGroupsByIndex) {
  const std::vector<uint32_t> codes(8 * 8, 0x99999999);
  const std::vector<uint32_t> zeros(2, 0x77777777);
  const auto scales = Halves({1, 1, 1, 1, 1, 1, 1, 1,  //
                              4, 4, 4, 4, 4, 4, 4, 4});
  std::vector<int32_t> g_idx(64);
  for (int j = 0; j < 64; ++j) g_idx[j] = j % 2;
  const WeightView w{.name = "w",
                     .format = QuantFormat::kGptq,
                     .n = 8,
                     .k = 64,
                     .data = Bytes(codes),
                     .group_elements = 32,
                     .scales = Bytes(scales),
                     .zeros_or_mins = Bytes(zeros),
                     .g_idx = Bytes(g_idx)};
  const std::vector<float> row = Row(w, 6);
  for (int j = 0; j < 64; ++j) EXPECT_EQ(row[j], j % 2 == 0 ? 1 : 4) << j;
}

constexpr std::array<float, 16> kE2m1Values = {
    0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

TEST(DequantGroups, Mxfp4ScalesByPowersOfTwo) {
  std::vector<uint8_t> codes;
  for (int repeat = 0; repeat < 8; ++repeat) {
    for (int j = 0; j < 16; j += 2) {
      codes.push_back(static_cast<uint8_t>(j | (j + 1) << 4));
    }
  }
  const std::vector<uint8_t> scales = {127, 0, 255, 130};
  const WeightView w{.name = "w",
                     .format = QuantFormat::kMxfp4,
                     .n = 1,
                     .k = 128,
                     .data = Bytes(codes),
                     .scales = Bytes(scales)};
  const std::vector<float> row = Row(w, 0);
  for (int j = 0; j < 32; ++j) {
    EXPECT_EQ(row[j], kE2m1Values[j % 16]);
    EXPECT_EQ(row[32 + j], kE2m1Values[j % 16] * 0x1p-127f);
    EXPECT_TRUE(std::isnan(row[64 + j]));
    EXPECT_EQ(row[96 + j], kE2m1Values[j % 16] * 8);
  }
}

TEST(DequantGroups, Nvfp4ScalesByE4m3AndTheTensors) {
  const std::vector<uint8_t> codes(8, 0x7a);   // -1 and 6
  const std::vector<uint8_t> scales = {0x01};  // 2^-9, subnormal
  const WeightView w{.name = "w",
                     .format = QuantFormat::kNvfp4,
                     .n = 1,
                     .k = 16,
                     .data = Bytes(codes),
                     .scales = Bytes(scales),
                     .tensor_scale = 0.75f};
  const std::vector<float> row = Row(w, 0);
  for (int j = 0; j < 16; j += 2) {
    EXPECT_EQ(row[j], -0.75f * 0x1p-9f);
    EXPECT_EQ(row[j + 1], 0.75f * 6 * 0x1p-9f);
  }
}

TEST(DequantGroups, ReadsViewsOfAnyAlignment) {
  test::Random random(5);
  for (const FormatInfo& info : kGroupFormatTable) {
    GroupWeight w =
        test::RandomGroupWeight({.format = info.format,
                                 .n = 8,
                                 .k = 64,
                                 .group = info.group_elements == 0 ? 32 : 0},
                                random);
    WeightView view = w.View();
    const std::vector<float> expected = w.Dequantized();
    std::vector<std::byte> odd[3];
    const std::byte** pointers[] = {&view.data, &view.scales,
                                    &view.zeros_or_mins};
    const std::vector<std::byte>* arrays[] = {&w.data, &w.scales,
                                              &w.zeros_or_mins};
    for (int i = 0; i < 3; ++i) {
      odd[i].assign(1, std::byte{0});
      odd[i].insert(odd[i].end(), arrays[i]->begin(), arrays[i]->end());
      *pointers[i] = odd[i].data() + 1;
    }
    for (int64_t row = 0; row < 8; ++row) {
      EXPECT_THAT(Row(view, row),
                  ElementsAreArray(expected.data() + row * 64, 64));
    }
  }
}

TEST(Minifloat, E4m3HasItsNumbers) {
  EXPECT_EQ(E4m3ToFloat(0x00), 0);
  EXPECT_EQ(E4m3ToFloat(0x01), 0x1p-9f);
  EXPECT_EQ(E4m3ToFloat(0x07), 7 * 0x1p-9f);
  EXPECT_EQ(E4m3ToFloat(0x08), 0x1p-6f);
  EXPECT_EQ(E4m3ToFloat(0x38), 1);
  EXPECT_EQ(E4m3ToFloat(0x7e), 448);
  EXPECT_EQ(E4m3ToFloat(0xfe), -448);
  EXPECT_TRUE(std::isnan(E4m3ToFloat(0x7f)));
  EXPECT_TRUE(std::isnan(E4m3ToFloat(0xff)));
  EXPECT_EQ(E8m0ToFloat(0), 0x1p-127f);
  EXPECT_EQ(E8m0ToFloat(254), 0x1p127f);
  EXPECT_TRUE(std::isnan(E8m0ToFloat(255)));
}

TEST(Minifloat, RoundingFindsTheNearestNumber) {
  for (int bits = 0; bits < 0x7f; ++bits) {
    const float value = E4m3ToFloat(static_cast<uint8_t>(bits));
    EXPECT_EQ(test::E4m3Bits(value), bits);
    EXPECT_EQ(test::E4m3Bits(-value), bits | 0x80);
    if (bits == 0x7e) continue;
    const float next = E4m3ToFloat(static_cast<uint8_t>(bits + 1));
    const float middle = (value + next) / 2;
    EXPECT_EQ(test::E4m3Bits(std::nextafter(middle, 0.0f)), bits);
    EXPECT_EQ(test::E4m3Bits(middle), bits + bits % 2);
    EXPECT_EQ(test::E4m3Bits(std::nextafter(middle, 500.0f)), bits + 1);
  }
  EXPECT_EQ(test::E4m3Bits(1e9f), 0x7e);
  for (int code = 0; code < 16; ++code) {
    EXPECT_EQ(test::E2m1Code(E2m1ToFloat(code)), code);
    EXPECT_EQ(E2m1ToFloat(code), kE2m1Values[code]);
  }
  EXPECT_EQ(test::E2m1Code(5), 6);  // ties to even: 4
  EXPECT_EQ(test::E2m1Code(0.25f), 0);
  EXPECT_EQ(test::E2m1Code(2.5f), 4);
  EXPECT_EQ(test::E2m1Code(-7), 15);
}

// The greatest error of round to nearest, as a part of the greatest magnitude
// of the group.
double Bound(QuantFormat format) {
  // A scale in FP16 is off by 2^-11 of itself, up to 15 times that.
  constexpr double kHalf = 16 * 0x1p-11;
  switch (format) {
    case QuantFormat::kInt4:
      return 1.0 / 15 + kHalf;  // half of a step of 2 / 15
    case QuantFormat::kInt4Sym:
      return 0.5 / 7 + kHalf;
    case QuantFormat::kAwq:
    case QuantFormat::kGptq:
      // The zero point may be off by half a step, and v1 has none of 0.
      return 2.0 / 15 + kHalf;
    case QuantFormat::kMxfp4:
      return 0.25;  // up to 8 of a scale becomes 6
    default:
      // The scale may be off by 1 / 16 of itself: 6 * 17 / 16 becomes 6; half
      // of the step from 4 to 6 is less.
      return 1.0 / 6 * (1 + 1.0 / 16) + 1.0 / 16;
  }
}

TEST(QuantizeGroups, WeightsComeBackWithinTheBound) {
  test::Random random(6);
  for (const FormatInfo& info : kGroupFormatTable) {
    for (const int64_t group : {32, 128, 256}) {
      for (const bool act_order : {false, true}) {
        if (act_order && info.format != QuantFormat::kGptq) continue;
        const GroupSpec spec{.format = info.format,
                             .n = 16,
                             .k = 512,
                             .group = info.group_elements == 0 ? group : 0,
                             .act_order = act_order};
        const std::vector<float> x = random.Normals(16 * 512, 0.05f);
        const GroupWeight w = test::QuantizeGroups(spec, x, random);
        ASSERT_TRUE(CheckWeight(w.View()).ok()) << CheckWeight(w.View());
        const std::vector<float> y = w.Dequantized();
        for (int64_t i = 0; i < 16 * 512; ++i) {
          const int64_t row = i / 512;
          const auto group_of = [&](int64_t j) {
            return act_order ? w.g_idx[j] : j / w.View().Group();
          };
          float greatest = 0;
          for (int64_t j = 0; j < 512; ++j) {
            if (group_of(j) != group_of(i % 512)) continue;
            greatest = std::max(greatest, std::fabs(x[row * 512 + j]));
          }
          ASSERT_LE(std::fabs(static_cast<double>(x[i]) - y[i]),
                    Bound(info.format) * greatest)
              << w.name << " element " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace nibble::kernels::reference
