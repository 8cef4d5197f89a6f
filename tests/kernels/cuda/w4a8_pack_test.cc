// Weights taken apart and packed for the W4A8 kernels, and the planning of
// launches; no GPU.
#include "kernels/cuda/linear/w4a8_pack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/linear/w4a8_plan.h"
#include "tests/kernels/cuda/w4_devices.h"
#include "tests/support/quantize.h"
#include "tests/support/random.h"

namespace nibble::test {
namespace {

using kernels::QuantFormat;
using kernels::cuda::DeviceInfo;
using kernels::cuda::kW4a8Formats;
using kernels::cuda::PackedW4;
using kernels::cuda::PackedW4a8;
using kernels::cuda::W4a8Format;
using kernels::cuda::W4a8Kind;
using kernels::cuda::W4a8Problem;
using kernels::cuda::W4Code;
using kernels::cuda::W4Numbers;

constexpr int kThreads = 2;

// Packed random blocks of a GGUF format.
PackedW4 Packed(QuantFormat format, int64_t n, int64_t k) {
  Random random(7);
  const TestWeight weight = RandomWeight(format, n, k, random);
  const kernels::WeightView view = weight.View();
  return kernels::cuda::PackW4(std::span(&view, 1)).value();
}

TEST(W4a8PackTest, NumbersAreTheWeights) {
  for (const QuantFormat format :
       {QuantFormat::kQ4_0, QuantFormat::kQ4_1, QuantFormat::kQ4_K}) {
    const PackedW4 packed = Packed(format, 37, 512);
    const W4Numbers numbers = TakeApart(packed, kThreads).value();
    EXPECT_EQ(numbers.symmetric, format == QuantFormat::kQ4_0);
    EXPECT_EQ(numbers.sub_scales.empty(), format != QuantFormat::kQ4_K);
    std::vector<float> row(512);
    for (int64_t i = 0; i < 37; ++i) {
      UnpackW4Row(packed, i, row.data());
      for (int64_t j = 0; j < 512; ++j) {
        const int64_t group = i * numbers.Groups() + j / numbers.group;
        const float scaled = numbers.scales[group] *
                             static_cast<float>(numbers.codes[i * 512 + j]);
        // The sum's terms may cancel each other, their roundings do not.
        ASSERT_NEAR(
            scaled + numbers.minimums[group], row[j],
            0x1p-22 * (std::fabs(scaled) + std::fabs(numbers.minimums[group])))
            << i << ", " << j;
        if (!numbers.sub_scales.empty()) {
          ASSERT_EQ(numbers.super_scales[i * 2 + j / 256] *
                        static_cast<float>(numbers.sub_scales[group]),
                    numbers.scales[group]);
        }
      }
    }
  }
}

TEST(W4a8PackTest, RefusesCodesThatAreNoIntegers) {
  PackedW4 packed;
  packed.layout.code = W4Code::kE2m1;
  EXPECT_FALSE(TakeApart(packed, kThreads).ok());
}

TEST(W4a8PackTest, RefusesWhatAFormatCannotHold) {
  const W4Numbers q4_1 =
      TakeApart(Packed(QuantFormat::kQ4_1, 16, 256), kThreads).value();
  using enum W4a8Kind;
  EXPECT_NE(W4a8Refusal(q4_1, {kScale, 32}), "");
  EXPECT_NE(W4a8Refusal(q4_1, {kScaleMin, 128}), "");
  EXPECT_NE(W4a8Refusal(q4_1, {kSubScale, 32}), "");
  EXPECT_EQ(W4a8Refusal(q4_1, {kScaleMin, 32}), "");
  EXPECT_EQ(W4a8Refusal(q4_1, {kRerounded, 32}), "");
  EXPECT_FALSE(PackW4a8(q4_1, {kSubScale, 32}, kThreads).ok());
}

TEST(W4a8PackTest, CodesComeBack) {
  for (const QuantFormat format : {QuantFormat::kQ4_0, QuantFormat::kQ4_K}) {
    const W4Numbers numbers =
        TakeApart(Packed(format, 200, 768), kThreads).value();
    for (const W4a8Format to : kW4a8Formats) {
      if (!W4a8Refusal(numbers, to).empty()) continue;
      if (to.kind == W4a8Kind::kRerounded) continue;
      const PackedW4a8 packed = PackW4a8(numbers, to, kThreads).value();
      const int offset = to.kind == W4a8Kind::kScale ? 8 : 0;
      for (int64_t i = 0; i < 200; ++i) {
        for (int64_t j = 0; j < 768; ++j) {
          ASSERT_EQ(W4a8CodeAt(packed, i, j) + offset,
                    numbers.codes[i * 768 + j])
              << i << ", " << j;
        }
      }
    }
  }
}

// A token of zeros has codes of 128: where sums begin must cancel them.
TEST(W4a8PackTest, RowsBeginWhereTheOffsetOfXIsNotInThem) {
  const W4Numbers numbers =
      TakeApart(Packed(QuantFormat::kQ4_K, 40, 512), kThreads).value();
  for (const W4a8Format format : kW4a8Formats) {
    if (!W4a8Refusal(numbers, format).empty()) continue;
    const PackedW4a8 packed = PackW4a8(numbers, format, kThreads).value();
    ASSERT_EQ(packed.row_offsets.size(), format.HasOffsets() ? 40 : 0);
    for (int64_t i = 0; format.HasOffsets() && i < 40; ++i) {
      double sum = 0, magnitude = 0;
      for (int64_t j = 0; j < 512; ++j) {
        const double product =
            128.0 * numbers.codes[i * 512 + j] *
            numbers.scales[i * numbers.Groups() + j / numbers.group];
        sum += product;
        magnitude += std::fabs(product);
      }
      EXPECT_NEAR(packed.row_offsets[i] / format.SumUnit(), -sum,
                  0x1p-24 * magnitude);
    }
  }
}

// Half a unit of the row's scale, and what rounding of multipliers adds to it.
TEST(W4a8PackTest, ReroundedCodesAreTheNearest) {
  constexpr double kMostUnits = 0.5 + 8.0 / 256;
  for (const QuantFormat format :
       {QuantFormat::kQ4_0, QuantFormat::kQ4_1, QuantFormat::kQ4_K}) {
    const W4Numbers numbers =
        TakeApart(Packed(format, 150, 512), kThreads).value();
    const PackedW4a8 packed =
        PackW4a8(numbers, {W4a8Kind::kRerounded, 32}, kThreads).value();
    int greatest = 0;
    for (int64_t i = 0; i < 150; ++i) {
      for (int64_t j = 0; j < 512; ++j) {
        const int64_t group = i * numbers.Groups() + j / 32;
        const double weight = static_cast<double>(numbers.scales[group]) *
                                  numbers.codes[i * 512 + j] +
                              static_cast<double>(numbers.minimums[group]);
        const int code = W4a8CodeAt(packed, i, j);
        greatest = std::max(greatest, std::abs(code));
        ASSERT_NEAR(code, weight / packed.row_scales[i], kMostUnits)
            << i << ", " << j;
      }
    }
    EXPECT_EQ(greatest, 127);
  }
}

TEST(W4a8PackTest, ARowOfZerosStaysZeros) {
  W4Numbers numbers{.n = 1, .k = 256, .group = 128};
  numbers.codes.assign(256, 5);
  numbers.scales.assign(2, 0.0f);
  numbers.minimums.assign(2, 0.0f);
  const PackedW4a8 packed =
      PackW4a8(numbers, {W4a8Kind::kRerounded, 128}, kThreads).value();
  EXPECT_EQ(packed.row_scales[0], 0);
  for (int64_t j = 0; j < 256; ++j) EXPECT_EQ(W4a8CodeAt(packed, 0, j), 0);
}

// The even numbers m and o make 16-bit lanes independent: the upper of two
// results is that of its own code whatever the lower one is.
TEST(W4a8PackTest, LanesDoNotDisturbEachOther) {
  for (const int m : {0, 2, 1'000, 4'334, 8'660}) {
    for (const int o : {-32'512, -8'000, -2, 0, 128, 2'000}) {
      for (int low = 0; low < 16; ++low) {
        for (int high = 0; high < 16; ++high) {
          if (high * m + o > 32'767 || low * m + o > 32'767) continue;
          const auto both = static_cast<uint32_t>(low | high << 16);
          const auto half = static_cast<uint32_t>(o) & 0xffff;
          const uint32_t v =
              both * static_cast<uint32_t>(m) + (half | half << 16);
          ASSERT_EQ(static_cast<int8_t>(v >> 8),
                    kernels::cuda::W4a8Rerounded(low, m, o));
          ASSERT_EQ(static_cast<int8_t>(v >> 24),
                    kernels::cuda::W4a8Rerounded(high, m, o));
        }
      }
    }
  }
}

TEST(W4a8PlanTest, EveryPlaceIsVisitedOnce) {
  const DeviceInfo device = TestDevice(9, 0, 132, 227);
  for (const int64_t m : {1, 31, 300, 5'000, 20'000}) {
    for (const int64_t n : {64, 1'440, 4'096}) {
      const W4a8Format format{W4a8Kind::kRerounded, 128};
      for (const int columns : kernels::cuda::W4a8Columns(format)) {
        const auto launch = PlanW4a8({format, m, n, 4'096}, columns, device);
        ASSERT_TRUE(launch.has_value());
        const auto& p = launch->params;
        std::vector<int> visits(
            static_cast<size_t>(p.row_tiles * p.column_tiles));
        for (int i = 0; i < p.row_tiles * p.column_tiles; ++i) {
          const auto place = PlaceW4a8(p, i);
          ASSERT_LT(place.row_tile, p.row_tiles);
          ASSERT_LT(place.column_tile, p.column_tiles);
          ++visits[place.column_tile * p.row_tiles + place.row_tile];
        }
        for (const int count : visits) ASSERT_EQ(count, 1);
      }
    }
  }
}

TEST(W4a8PlanTest, SpecsNameOneKernelOnHopperAlone) {
  for (const W4a8Format format : kW4a8Formats) {
    for (const int columns : kernels::cuda::W4a8Columns(format)) {
      const auto spec = kernels::cuda::W4a8Spec(format, columns);
      EXPECT_EQ(ParseW4a8Spec(format, spec), columns);
      for (const DeviceInfo& device : TestDevices()) {
        const W4a8Problem problem{format, 16, 4'096, 4'096};
        EXPECT_EQ(PlanW4a8(problem, columns, device).has_value(),
                  device.compute_major == 9)
            << device.ToString();
      }
    }
  }
  const W4a8Format format{W4a8Kind::kScale, 32};
  EXPECT_FALSE(ParseW4a8Spec(
                   format, kernels::cuda::W4a8Spec({W4a8Kind::kScale, 128}, 64))
                   .has_value());
}

TEST(W4a8PlanTest, RefusesSizesOutOfRange) {
  const DeviceInfo device = TestDevice(9, 0, 132, 227);
  const W4a8Format format{W4a8Kind::kScaleMin, 128};
  EXPECT_FALSE(PlanW4a8({format, 0, 64, 256}, 64, device).has_value());
  EXPECT_FALSE(
      PlanW4a8({format, 16, 64, kernels::cuda::kW4a8MaxK + 1}, 64, device)
          .has_value());
  EXPECT_FALSE(
      PlanW4a8({{W4a8Kind::kScale, 64}, 16, 64, 256}, 64, device).has_value());
}

}  // namespace
}  // namespace nibble::test
