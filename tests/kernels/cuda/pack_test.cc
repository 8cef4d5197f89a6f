#include "kernels/cuda/linear/pack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/linear/w4a16.h"
#include "kernels/reference/dequant.h"
#include "kernels/reference/half.h"
#include "tests/support/quantize.h"
#include "tests/support/quantize_groups.h"

namespace nibble::kernels::cuda {
namespace {

using test::GroupSpec;
using test::GroupWeight;
using testing::HasSubstr;

// Packed row `packed_row` is row `row` of `weight`, bit for bit.
void ExpectSameRow(const PackedW4& packed, int64_t packed_row,
                   const WeightView& weight, int64_t row) {
  std::vector<float> actual(static_cast<size_t>(packed.k));
  std::vector<float> expected(actual.size());
  UnpackW4Row(packed, packed_row, actual.data());
  reference::DequantizeRow(weight, row, expected.data());
  for (size_t j = 0; j < actual.size(); ++j) {
    if (std::isnan(expected[j])) {
      ASSERT_TRUE(std::isnan(actual[j])) << "row " << row << " column " << j;
      continue;
    }
    ASSERT_EQ(std::bit_cast<uint32_t>(actual[j]),
              std::bit_cast<uint32_t>(expected[j]))
        << "row " << row << " column " << j << ": " << actual[j] << " is not "
        << expected[j];
  }
}

// Bytes of scales that belong to rows or groups beyond the matrix, and codes
// beyond it, are zero.
void ExpectZeroPadding(const PackedW4& packed) {
  PackedW4 whole = packed;
  whole.n = Tiles(packed.n) * kTileRows;
  whole.k = BlocksPerTile(packed.k) * kBlockK;
  whole.x_perm.clear();
  std::vector<float> row(static_cast<size_t>(whole.k));
  UnpackW4Row(whole, whole.n - 1, row.data());
  const int64_t groups = CeilDiv(packed.k, packed.layout.group);
  const int64_t begin = whole.n == packed.n ? groups * packed.layout.group : 0;
  for (int64_t j = begin; j < whole.k; ++j) ASSERT_EQ(row[j], 0) << j;
}

// All rows of small matrices, else the first and last and a few between.
void ExpectRoundTrip(const WeightView& weight) {
  const auto packed = PackW4({&weight, 1});
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_EQ(packed->n, weight.n);
  EXPECT_EQ(packed->k, weight.k);
  EXPECT_EQ(static_cast<int64_t>(packed->blocks.size()),
            PackedBytes(packed->layout, weight.n, weight.k));
  const int64_t step = weight.n <= 72 ? 1 : 37;
  for (int64_t row = 0; row < weight.n; row += step) {
    ExpectSameRow(*packed, row, weight, row);
  }
  ExpectSameRow(*packed, weight.n - 1, weight, weight.n - 1);
  ExpectZeroPadding(*packed);
}

constexpr int64_t kRows[] = {64, 72, 320, 576, 1440, 2112};
constexpr int64_t kColumns[] = {96, 576, 1536, 2880, 3420, 8960};
constexpr int64_t kPerChannel = 0;  // stands for a group of k
constexpr int64_t kGroups[] = {32, 64, 128, 256, kPerChannel};

// A format with all that a checkpoint may choose. By value.
struct Variant {
  QuantFormat format = QuantFormat::kInt4;
  int64_t group = 0;  // of kGroups
  DType scale_dtype = DType::kF16;
  GptqZeros gptq_zeros = GptqZeros::kLessOne;
  bool act_order = false;

  std::string ToString() const {
    std::string text(Name(format));
    if (Info(format).group_elements == 0) {
      text += group == kPerChannel ? "_pc" : "_g" + std::to_string(group);
    }
    if (scale_dtype == DType::kBF16) text += "_bf16";
    if (gptq_zeros == GptqZeros::kPlain) text += "_v2";
    return text + (act_order ? "_act" : "");
  }
};

std::vector<Variant> Variants() {
  std::vector<Variant> variants = {{QuantFormat::kQ4_0},
                                   {QuantFormat::kQ4_1},
                                   {QuantFormat::kQ4_K},
                                   {QuantFormat::kMxfp4},
                                   {QuantFormat::kNvfp4}};
  for (const int64_t group : kGroups) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      variants.push_back({QuantFormat::kInt4, group, dtype});
      variants.push_back({QuantFormat::kInt4Sym, group, dtype});
      variants.push_back({QuantFormat::kAwq, group, dtype});
    }
    for (const bool act_order : {false, true}) {
      for (const auto zeros : {GptqZeros::kLessOne, GptqZeros::kPlain}) {
        variants.push_back(
            {QuantFormat::kGptq, group, DType::kF16, zeros, act_order});
      }
    }
  }
  return variants;
}

GroupSpec SpecOf(const Variant& variant, int64_t n, int64_t k) {
  GroupSpec spec{.format = variant.format,
                 .n = n,
                 .k = k,
                 .group = variant.group,
                 .scale_dtype = variant.scale_dtype,
                 .gptq_zeros = variant.gptq_zeros,
                 .act_order = variant.act_order};
  if (Info(variant.format).group_elements == 0 &&
      variant.group == kPerChannel) {
    spec.group = k;
  }
  return spec;
}

// Whether the format has matrices of k columns.
bool Allows(const GroupSpec& spec) {
  switch (spec.format) {
    case QuantFormat::kAwq:
      return spec.k % spec.group == 0;
    case QuantFormat::kGptq:
      return spec.k % 8 == 0;
    case QuantFormat::kInt4:
    case QuantFormat::kInt4Sym:
      return spec.k % 2 == 0;
    default:
      return spec.k % (spec.format == QuantFormat::kQ4_K ? 256 : 32) == 0;
  }
}

class PackVariant : public testing::TestWithParam<Variant> {
 protected:
  void RoundTrip(int64_t n, int64_t k) {
    const GroupSpec spec = SpecOf(GetParam(), n, k);
    SCOPED_TRACE(GetParam().ToString() + " " + std::to_string(n) + " x " +
                 std::to_string(k));
    if (IsBlockFormat(spec.format)) {
      const std::vector<std::byte> blocks =
          Allows(spec) ? test::RandomBlocks(spec.format, n, k, random_)
                       : std::vector<std::byte>(1);
      Judge({.name = "w",
             .format = spec.format,
             .n = n,
             .k = k,
             .data = blocks.data()},
            Allows(spec));
    } else {
      const GroupWeight weight = test::RandomGroupWeight(spec, random_);
      Judge(weight.View(), Allows(spec));
    }
  }

 private:
  static void Judge(const WeightView& weight, bool allowed) {
    if (allowed) return ExpectRoundTrip(weight);
    const absl::Status status = PackW4({&weight, 1}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("is no multiple of"));
  }

  test::Random random_{17};
};

INSTANTIATE_TEST_SUITE_P(Pack, PackVariant, testing::ValuesIn(Variants()),
                         [](const auto& info) {
                           return info.param.ToString();
                         });

// Every n and every k, paired in another way for each group.
TEST_P(PackVariant, RoundTripsBitForBit) {
  const size_t shift = std::countr_zero(
      static_cast<uint64_t>(GetParam().group == 0 ? 16 : GetParam().group));
  for (size_t i = 0; i < std::size(kColumns); ++i) {
    RoundTrip(kRows[(i + shift) % std::size(kRows)], kColumns[i]);
  }
}

TEST_P(PackVariant, RoundTripsOddRowsOfASmallMatrix) {
  for (const int64_t n : {8, 16, 24, 40}) RoundTrip(n, 256);
}

TEST(Pack, AnyNumberOfRowsWhereTheFormatAllows) {
  test::Random random(3);
  for (const int64_t n : {1, 3, 15, 17, 31}) {
    ExpectRoundTrip(
        test::RandomGroupWeight(
            {.format = QuantFormat::kInt4, .n = n, .k = 130, .group = 32},
            random)
            .View());
    ExpectRoundTrip(
        test::RandomGroupWeight(
            {.format = QuantFormat::kNvfp4, .n = n, .k = 272}, random)
            .View());
    const std::vector<std::byte> blocks =
        test::RandomBlocks(QuantFormat::kQ4_1, n, 96, random);
    ExpectRoundTrip({.name = "w",
                     .format = QuantFormat::kQ4_1,
                     .n = n,
                     .k = 96,
                     .data = blocks.data()});
  }
}

// Every E8M0 and E4M3 number with every code.
TEST(Pack, KeepsEveryScaleOfTheFloatFormats) {
  test::Random random(4);
  GroupWeight mxfp4 = test::RandomGroupWeight(
      {.format = QuantFormat::kMxfp4, .n = 16, .k = 32 * 256}, random);
  for (size_t i = 0; i < mxfp4.scales.size(); ++i) {
    const int e = static_cast<int>(i % 256);
    mxfp4.scales[i] =
        static_cast<std::byte>(e == 255 ? e : std::min(e, kMaxE8m0));
  }
  ExpectRoundTrip(mxfp4.View());
  GroupWeight nvfp4 = test::RandomGroupWeight(
      {.format = QuantFormat::kNvfp4, .n = 16, .k = 16 * 256}, random);
  for (size_t i = 0; i < nvfp4.scales.size(); ++i) {
    const size_t bits = i % 256;
    nvfp4.scales[i] =
        static_cast<std::byte>((bits & 0x7f) == 0x7f ? bits - 1 : bits);
  }
  ExpectRoundTrip(nvfp4.View());
}

TEST(Pack, KeepsTheOutermostZeroPoints) {
  test::Random random(5);
  for (const QuantFormat format : {QuantFormat::kAwq, QuantFormat::kGptq}) {
    for (const uint8_t zeros : {0x00, 0xff, 0xf0}) {
      GroupWeight w = test::RandomGroupWeight(
          {.format = format, .n = 24, .k = 256, .group = 64}, random);
      std::fill(w.zeros_or_mins.begin(), w.zeros_or_mins.end(),
                std::byte{zeros});
      ExpectRoundTrip(w.View());
    }
  }
}

TEST(Pack, GroupsOfZerosAreZeros) {
  test::Random random(6);
  for (const FormatInfo& info : kGroupFormatTable) {
    const GroupSpec spec{.format = info.format,
                         .n = 16,
                         .k = 128,
                         .group = info.group_elements == 0 ? 32 : 0};
    const GroupWeight w = test::QuantizeGroups(
        spec, std::vector<float>(static_cast<size_t>(16 * 128)), random);
    ExpectRoundTrip(w.View());
    const auto packed = PackW4({{w.View()}});
    ASSERT_TRUE(packed.ok());
    std::vector<float> row(128);
    UnpackW4Row(*packed, 5, row.data());
    EXPECT_THAT(row, testing::Each(0.0f)) << info.name;
  }
}

// What w4_layout.h says, in numbers: one code that is not zero.
TEST(Pack, PutsCodesAndScalesWhereTheLayoutSays) {
  constexpr int64_t kN = 32;
  constexpr int64_t kK = 512;
  test::Random random(7);
  GroupWeight w = test::RandomGroupWeight(
      {.format = QuantFormat::kInt4, .n = kN, .k = kK, .group = 128}, random);
  std::fill(w.data.begin(), w.data.end(), std::byte{0});
  // Row 28 is row 12 = 8 + 4 of tile 1; column 347 is column 91 of block 1:
  // step 5, there 11 = 2 * 1 + 9. So g = 4, t = 1, lane 17, bits 28..31.
  w.data[(28 * kK + 347) / 2] = std::byte{0xb0};
  const auto packed = PackW4({{w.View()}});
  ASSERT_TRUE(packed.ok()) << packed.status();
  const W4Layout layout{W4Code::kInt4, W4Scale::kScaleMin, 128};
  ASSERT_EQ(packed->layout, layout);
  const std::byte* block = packed->blocks.data() + 3 * layout.BlockBytes();
  for (int i = 0; i < kCodeBytes; ++i) {
    const int expected = i == 16 * (32 * 1 + 17) + 4 * 1 + 3 ? 0xb0 : 0;
    ASSERT_EQ(std::to_integer<int>(block[i]), expected) << i;
  }
  // Rows 0 and 8, 1 and 9, ..., of each two both groups: the lower row of the
  // fifth pair's second group.
  const std::byte* slot = block + kCodeBytes + 4 * ((4 * 2 + 1) * 2 + 1);
  EXPECT_EQ(layout.ScaleAt(12, 1), slot - block - kCodeBytes);
  const int64_t number = 28 * (kK / 128) + 3;
  EXPECT_EQ(std::memcmp(slot, w.scales.data() + 2 * number, 2), 0);
  EXPECT_EQ(std::memcmp(slot + 2, w.zeros_or_mins.data() + 2 * number, 2), 0);
}

TEST(Pack, SpreadsE2m1CodesOverTheHalfWord) {
  test::Random random(8);
  GroupWeight w = test::RandomGroupWeight(
      {.format = QuantFormat::kMxfp4, .n = 16, .k = 256}, random);
  for (int pair = 0; pair < 4; ++pair) {
    for (int bit = 0; bit < 4; ++bit) {
      std::fill(w.data.begin(), w.data.end(), std::byte{0});
      const int row = pair % 2 * 8;
      const int column = pair / 2 * 8 + 1;  // the upper half of lane 0's word
      w.data[(row * 256 + column) / 2] = static_cast<std::byte>(0x10 << bit);
      const auto packed = PackW4({{w.View()}});
      ASSERT_TRUE(packed.ok()) << packed.status();
      uint32_t word;
      std::memcpy(&word, packed->blocks.data(), sizeof(word));
      EXPECT_EQ(word, 1u << (16 + kE2m1Bits[pair][3 - bit]))
          << "pair " << pair << " bit " << bit;
    }
  }
}

TEST(Pack, StacksPartsRowByRow) {
  test::Random random(9);
  const GroupSpec spec{
      .format = QuantFormat::kInt4, .n = 0, .k = 576, .group = 64};
  std::vector<GroupWeight> owners;
  std::vector<WeightView> parts;
  for (const int64_t n : {5, 1, 40, 3, 7}) {
    GroupSpec part = spec;
    part.n = n;
    owners.push_back(test::RandomGroupWeight(part, random));
  }
  for (const GroupWeight& owner : owners) parts.push_back(owner.View());
  const auto packed = PackW4(parts);
  ASSERT_TRUE(packed.ok()) << packed.status();
  ASSERT_EQ(packed->n, 56);
  int64_t packed_row = 0;
  for (const WeightView& part : parts) {
    for (int64_t row = 0; row < part.n; ++row) {
      ExpectSameRow(*packed, packed_row++, part, row);
    }
  }
}

TEST(Pack, StacksFormatsOfOneLayout) {
  test::Random random(10);
  const std::vector<std::byte> blocks =
      test::RandomBlocks(QuantFormat::kQ4_1, 24, 96, random);
  const GroupWeight int4 = test::RandomGroupWeight(
      {.format = QuantFormat::kInt4, .n = 9, .k = 96, .group = 32}, random);
  const std::vector<WeightView> parts = {{.name = "q4_1",
                                          .format = QuantFormat::kQ4_1,
                                          .n = 24,
                                          .k = 96,
                                          .data = blocks.data()},
                                         int4.View()};
  const auto packed = PackW4(parts);
  ASSERT_TRUE(packed.ok()) << packed.status();
  for (int64_t row = 0; row < 24; ++row) {
    ExpectSameRow(*packed, row, parts[0], row);
  }
  for (int64_t row = 0; row < 9; ++row) {
    ExpectSameRow(*packed, 24 + row, parts[1], row);
  }
}

TEST(Pack, InterleavesGateAndUp) {
  test::Random random(11);
  for (const QuantFormat format : {QuantFormat::kInt4, QuantFormat::kAwq}) {
    const int64_t features = format == QuantFormat::kAwq ? 72 : 69;
    const GroupSpec spec{
        .format = format, .n = features, .k = 320, .group = 64};
    const GroupWeight gate = test::RandomGroupWeight(spec, random);
    const GroupWeight up = test::RandomGroupWeight(spec, random);
    const auto packed =
        PackW4({{gate.View(), up.View()}}, {.interleave_gate_up = true});
    ASSERT_TRUE(packed.ok()) << packed.status();
    ASSERT_EQ(packed->n, 160);
    for (int64_t i = 0; i < features; ++i) {
      ExpectSameRow(*packed, InterleavedRow(i, false), gate.View(), i);
      ExpectSameRow(*packed, InterleavedRow(i, true), up.View(), i);
    }
    std::vector<float> row(320);
    for (int64_t i = features; i < 80; ++i) {
      UnpackW4Row(*packed, InterleavedRow(i, true), row.data());
      EXPECT_THAT(row, testing::Each(0.0f)) << i;
    }
  }
}

TEST(Pack, ThreadsChangeNothing) {
  test::Random random(12);
  for (const QuantFormat format : {QuantFormat::kGptq, QuantFormat::kInt4Sym}) {
    const GroupWeight w = test::RandomGroupWeight(
        {.format = format, .n = 1304, .k = 1536, .group = 128}, random);
    const auto one = PackW4({{w.View()}});
    ASSERT_TRUE(one.ok()) << one.status();
    for (const int threads : {2, 3, 7, 50}) {
      const auto many = PackW4({{w.View()}}, {.threads = threads});
      ASSERT_TRUE(many.ok()) << many.status();
      EXPECT_TRUE(one->blocks == many->blocks) << threads;
    }
  }
}

TEST(Pack, SortsTheColumnsOfActOrder) {
  test::Random random(13);
  GroupWeight w = test::RandomGroupWeight({.format = QuantFormat::kGptq,
                                           .n = 16,
                                           .k = 96,
                                           .group = 32,
                                           .act_order = true},
                                          random);
  const auto packed = PackW4({{w.View()}});
  ASSERT_TRUE(packed.ok()) << packed.status();
  ASSERT_EQ(packed->x_perm.size(), 96u);
  for (int c = 0; c < 96; ++c) {
    EXPECT_EQ(w.g_idx[packed->x_perm[c]], c / 32);
    if (c % 32 != 0) {
      EXPECT_LT(packed->x_perm[c - 1], packed->x_perm[c]);
    }
  }
  std::sort(w.g_idx.begin(), w.g_idx.end());
  const auto sorted = PackW4({{w.View()}});
  ASSERT_TRUE(sorted.ok()) << sorted.status();
  EXPECT_TRUE(sorted->x_perm.empty());
}

// Multiplies the BF16 scales by a power of two.
void ShiftScales(int exponent, std::vector<std::byte>& scales) {
  for (size_t i = 0; i < scales.size(); i += 2) {
    uint16_t bits;
    std::memcpy(&bits, scales.data() + i, 2);
    bits = reference::FloatToBFloat16(
        std::ldexp(reference::BFloat16ToFloat(bits), exponent));
    std::memcpy(scales.data() + i, &bits, 2);
  }
}

TEST(Pack, BringsScalesIntoFp16ByAPowerOfTwo) {
  test::Random random(14);
  for (const QuantFormat format :
       {QuantFormat::kInt4, QuantFormat::kInt4Sym, QuantFormat::kAwq}) {
    for (const int exponent : {-100, -30, 0, 17, 40, 100}) {
      GroupWeight w = test::RandomGroupWeight({.format = format,
                                               .n = 40,
                                               .k = 256,
                                               .group = 32,
                                               .scale_dtype = DType::kBF16},
                                              random);
      ShiftScales(exponent, w.scales);
      if (format == QuantFormat::kInt4) ShiftScales(exponent, w.zeros_or_mins);
      ExpectRoundTrip(w.View());
      const auto packed = PackW4({{w.View()}});
      EXPECT_EQ(packed->tensor_scale == 1.0f, exponent == 0) << exponent;
    }
  }
}

TEST(Pack, StacksBFloat16AndFp16ScalesByOnePowerOfTwo) {
  test::Random random(15);
  GroupSpec spec{
      .format = QuantFormat::kInt4Sym, .n = 24, .k = 256, .group = 32};
  GroupWeight half = test::RandomGroupWeight(spec, random);
  spec.scale_dtype = DType::kBF16;
  GroupWeight brain = test::RandomGroupWeight(spec, random);
  ShiftScales(17, brain.scales);
  for (std::byte& scale : half.scales) scale &= std::byte{0xf0};  // few bits
  const auto packed = PackW4({{half.View(), brain.View()}});
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_NE(packed->tensor_scale, 1.0f);
  for (int64_t row = 0; row < 24; ++row) {
    ExpectSameRow(*packed, row, half.View(), row);
    ExpectSameRow(*packed, 24 + row, brain.View(), row);
  }
}

// A refusal that names the tensor and the reason.
void ExpectRefused(const std::vector<WeightView>& parts,
                   const std::string& name, const std::string& reason,
                   const PackOptions& options = {}) {
  const absl::Status status = PackW4(parts, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << reason;
  EXPECT_THAT(std::string(status.message()), HasSubstr("'" + name + "'"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(reason));
}

TEST(Pack, RefusesE8m0ScalesThatItCannotKeep) {
  test::Random random(4);
  GroupWeight w = test::RandomGroupWeight(
      {.format = QuantFormat::kMxfp4, .n = 16, .k = 64}, random);
  w.name = "great";
  w.scales[17] = static_cast<std::byte>(kMaxE8m0 + 1);
  ExpectRefused({w.View()}, "great", "scale 2^66 is above 2^65");
  w.scales[17] = std::byte{254};
  ExpectRefused({w.View()}, "great", "scale 2^127 is above 2^65");
  w.scales[17] = static_cast<std::byte>(kMaxE8m0);
  EXPECT_TRUE(PackW4({{w.View()}}).ok());
}

TEST(Pack, RefusesScalesTooFarApart) {
  test::Random random(16);
  GroupWeight w = test::RandomGroupWeight({.format = QuantFormat::kInt4Sym,
                                           .n = 16,
                                           .k = 64,
                                           .group = 32,
                                           .scale_dtype = DType::kBF16},
                                          random);
  const uint16_t great = reference::FloatToBFloat16(0x1p20f);
  const uint16_t small = reference::FloatToBFloat16(0x1p-21f);
  std::memcpy(w.scales.data(), &great, 2);
  std::memcpy(w.scales.data() + 2, &small, 2);
  ExpectRefused({w.View()}, w.name, "1.04858e+06");
  ExpectRefused({w.View()}, w.name, "4.76837e-07");
}

TEST(Pack, RefusesFormatsWithoutFourBitCodes) {
  const std::vector<std::byte> blocks(34);
  ExpectRefused({{.name = "w",
                  .format = QuantFormat::kQ8_0,
                  .n = 1,
                  .k = 32,
                  .data = blocks.data()}},
                "w", "is no format of 4-bit codes");
}

TEST(Pack, RefusesPartsThatDiffer) {
  test::Random random(17);
  const auto make = [&random](GroupSpec spec, std::string name) {
    GroupWeight w = test::RandomGroupWeight(spec, random);
    w.name = std::move(name);
    return w;
  };
  const GroupSpec spec{
      .format = QuantFormat::kInt4, .n = 16, .k = 256, .group = 64};
  const GroupWeight first = make(spec, "first");
  GroupSpec other = spec;
  other.k = 512;
  const GroupWeight wide = make(other, "wide");
  ExpectRefused({first.View(), wide.View()}, "wide", "k = 512, not the 256");
  other = spec;
  other.group = 32;
  const GroupWeight fine = make(other, "fine");
  ExpectRefused({first.View(), fine.View()}, "fine", "is laid out otherwise");
  other = spec;
  other.n = 8;
  const GroupWeight low = make(other, "low");
  ExpectRefused({first.View(), low.View()}, "low", "n = 8, not the 16",
                {.interleave_gate_up = true});
  const GroupSpec nvfp4{.format = QuantFormat::kNvfp4, .n = 16, .k = 256};
  const GroupWeight one = make(nvfp4, "one");
  const GroupWeight two = make(nvfp4, "two");
  ExpectRefused({one.View(), two.View()}, "two", "tensor scale");
  GroupSpec gptq{.format = QuantFormat::kGptq, .n = 16, .k = 256, .group = 64};
  const GroupWeight plain = make(gptq, "plain");
  gptq.act_order = true;
  const GroupWeight sorted = make(gptq, "sorted");
  ExpectRefused({plain.View(), sorted.View()}, "sorted", "act-order");
}

TEST(Pack, RefusesGroupsOfUnequalSizes) {
  test::Random random(18);
  GroupWeight w = test::RandomGroupWeight({.format = QuantFormat::kGptq,
                                           .n = 8,
                                           .k = 128,
                                           .group = 32,
                                           .act_order = true},
                                          random);
  const auto at = std::find(w.g_idx.begin(), w.g_idx.end(), 1);
  *at = 2;
  ExpectRefused({w.View()}, w.name, "g_idx gives group 1 fewer than 32");
  *at = 0;
  ExpectRefused({w.View()}, w.name, "g_idx gives group 0 more than 32");
}

}  // namespace
}  // namespace nibble::kernels::cuda
