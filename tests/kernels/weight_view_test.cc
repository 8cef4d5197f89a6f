#include "kernels/weight_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/quantize.h"
#include "tests/support/quantize_groups.h"

namespace nibble::kernels {
namespace {

using test::GroupSpec;
using test::GroupWeight;
using testing::HasSubstr;

GroupWeight Valid(QuantFormat format) {
  test::Random random(1);
  const bool choice = Info(format).group_elements == 0;
  GroupWeight w = test::RandomGroupWeight(
      {.format = format, .n = 16, .k = 128, .group = choice ? 64 : 0}, random);
  w.name = "blk.0.w";
  return w;
}

void ExpectRefused(const WeightView& weight, const std::string& reason) {
  const absl::Status status = CheckWeight(weight);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << reason;
  EXPECT_THAT(std::string(status.message()), HasSubstr("'blk.0.w'"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(reason));
}

void Store16(std::vector<std::byte>& array, int64_t index, uint16_t bits) {
  std::memcpy(array.data() + 2 * index, &bits, sizeof(bits));
}

TEST(WeightView, ValidWeightsPass) {
  for (const FormatInfo& info : kGroupFormatTable) {
    const GroupWeight w = Valid(info.format);
    EXPECT_TRUE(CheckWeight(w.View()).ok()) << CheckWeight(w.View());
    EXPECT_EQ(w.View().Bytes(), 16 * 128 / 2);
  }
  test::Random random(2);
  for (const FormatInfo& info : kFormatTable) {
    const std::vector<std::byte> blocks =
        test::RandomBlocks(info.format, 3, 512, random);
    const WeightView view{.name = "w",
                          .format = info.format,
                          .n = 3,
                          .k = 512,
                          .data = blocks.data()};
    EXPECT_TRUE(CheckWeight(view).ok()) << CheckWeight(view);
    EXPECT_EQ(view.Bytes(), static_cast<int64_t>(blocks.size()));
  }
}

TEST(WeightView, RefusesShapes) {
  for (const FormatInfo& info : kGroupFormatTable) {
    const GroupWeight w = Valid(info.format);
    WeightView view = w.View();
    view.n = 0;
    ExpectRefused(view, "shape [0, 128]");
    view = w.View();
    view.k = -128;
    ExpectRefused(view, "shape [16, -128]");
    view = w.View();
    view.n = int64_t{1} << 31;
    ExpectRefused(view, "outside [1, 2147483647]");
  }
}

TEST(WeightView, RefusesWhatDoesNotFillAWord) {
  const auto with = [](const GroupWeight& w, int64_t n, int64_t k) {
    WeightView view = w.View();
    view.n = n;
    view.k = k;
    return view;
  };
  const GroupWeight int4 = Valid(QuantFormat::kInt4);
  ExpectRefused(with(int4, 16, 127), "k = 127 is no multiple of 2");
  const GroupWeight sym = Valid(QuantFormat::kInt4Sym);
  ExpectRefused(with(sym, 16, 127), "k = 127 is no multiple of 2");
  const GroupWeight awq = Valid(QuantFormat::kAwq);
  ExpectRefused(with(awq, 12, 128), "n = 12 is no multiple of 8");
  ExpectRefused(with(awq, 16, 96), "k = 96 is no multiple of 64");
  const GroupWeight gptq = Valid(QuantFormat::kGptq);
  ExpectRefused(with(gptq, 12, 128), "n = 12 is no multiple of 8");
  ExpectRefused(with(gptq, 16, 100), "k = 100 is no multiple of 8");
  const GroupWeight mxfp4 = Valid(QuantFormat::kMxfp4);
  ExpectRefused(with(mxfp4, 16, 112), "k = 112 is no multiple of 32");
  const GroupWeight nvfp4 = Valid(QuantFormat::kNvfp4);
  ExpectRefused(with(nvfp4, 16, 120), "k = 120 is no multiple of 16");
  const std::vector<std::byte> block(18);
  ExpectRefused({.name = "blk.0.w",
                 .format = QuantFormat::kQ4_0,
                 .n = 1,
                 .k = 33,
                 .data = block.data()},
                "k = 33 is no multiple of 32");
}

TEST(WeightView, RefusesGroups) {
  for (const QuantFormat format : {QuantFormat::kInt4, QuantFormat::kInt4Sym,
                                   QuantFormat::kAwq, QuantFormat::kGptq}) {
    const GroupWeight w = Valid(format);
    for (const int64_t group : {-1, 0, 16, 48, 127, 512}) {
      WeightView view = w.View();
      view.group_elements = group;
      ExpectRefused(view, "a group of " + std::to_string(group));
    }
    WeightView view = w.View();
    view.scale_dtype = DType::kF32;
    ExpectRefused(view, "expected FP16 or BF16");
  }
  const GroupWeight nvfp4 = Valid(QuantFormat::kNvfp4);
  WeightView view = nvfp4.View();
  view.group_elements = 32;
  ExpectRefused(view, "a group of 32 weights, but the format's has 16");
}

TEST(WeightView, RefusesMissingArrays) {
  for (const FormatInfo& info : kGroupFormatTable) {
    const GroupWeight w = Valid(info.format);
    WeightView view = w.View();
    view.data = nullptr;
    ExpectRefused(view, "has no data");
    view = w.View();
    view.scales = nullptr;
    ExpectRefused(view, "has no scales");
    view = w.View();
    if (view.zeros_or_mins != nullptr) {
      view.zeros_or_mins = nullptr;
      ExpectRefused(view, "has no zero points or minimums");
    }
  }
}

TEST(WeightView, RefusesScalesThatAreNoNumbers) {
  for (const uint16_t bits : {0x7c00, 0xfc00, 0x7e01}) {
    GroupWeight w = Valid(QuantFormat::kInt4);
    Store16(w.scales, 5, bits);
    ExpectRefused(w.View(), "scale[2, 1]");
    w = Valid(QuantFormat::kInt4);
    Store16(w.zeros_or_mins, 31, bits);
    ExpectRefused(w.View(), "minimum[15, 1]");
    w = Valid(QuantFormat::kAwq);
    Store16(w.scales, 17, bits);
    ExpectRefused(w.View(), "scale[1, 1]");
  }
  GroupWeight w = Valid(QuantFormat::kInt4Sym);
  w.spec.scale_dtype = DType::kBF16;
  Store16(w.scales, 0, 0x7f80);
  ExpectRefused(w.View(), "scale[0, 0]");
  Store16(w.scales, 0, 0x7c00);  // FP16's infinity is a BF16 number
  EXPECT_TRUE(CheckWeight(w.View()).ok());
  for (const int nan : {0x7f, 0xff}) {
    w = Valid(QuantFormat::kNvfp4);
    w.scales[9] = static_cast<std::byte>(nan);
    ExpectRefused(w.View(), "scale[1, 1] = " + std::to_string(nan));
  }
  w = Valid(QuantFormat::kMxfp4);
  w.scales[9] = std::byte{255};
  EXPECT_TRUE(CheckWeight(w.View()).ok());
}

TEST(WeightView, RefusesBlocksOfInfiniteScale) {
  for (const FormatInfo& info : kFormatTable) {
    if (info.code == CodeType::kFloat) continue;
    test::Random random(3);
    std::vector<std::byte> blocks =
        test::RandomBlocks(info.format, 2, 512, random);
    const int64_t last = static_cast<int64_t>(blocks.size()) - info.block_bytes;
    const int offset = info.format == QuantFormat::kQ6_K ? 208 : 0;
    blocks[last + offset] = std::byte{0x00};
    blocks[last + offset + 1] = std::byte{0x7c};
    ExpectRefused({.name = "blk.0.w",
                   .format = info.format,
                   .n = 2,
                   .k = 512,
                   .data = blocks.data()},
                  "row 1, block " +
                      std::to_string(512 / info.block_elements - 1) +
                      ": scale inf");
  }
}

TEST(WeightView, RefusesTensorScales) {
  GroupWeight w = Valid(QuantFormat::kNvfp4);
  w.tensor_scale = std::numeric_limits<float>::infinity();
  ExpectRefused(w.View(), "tensor scale inf is not finite");
  w.tensor_scale = std::numeric_limits<float>::quiet_NaN();
  ExpectRefused(w.View(), "is not finite");
  w = Valid(QuantFormat::kInt4);
  w.tensor_scale = 2;
  ExpectRefused(w.View(), "tensor scale of 2, which only nvfp4 knows");
}

TEST(WeightView, RefusesGroupIndices) {
  test::Random random(4);
  GroupWeight w = test::RandomGroupWeight({.format = QuantFormat::kGptq,
                                           .n = 16,
                                           .k = 128,
                                           .group = 64,
                                           .act_order = true},
                                          random);
  w.name = "blk.0.w";
  ASSERT_TRUE(CheckWeight(w.View()).ok()) << CheckWeight(w.View());
  w.g_idx[7] = 2;
  ExpectRefused(w.View(), "g_idx[7] = 2 is not in [0, 2)");
  w.g_idx[7] = -1;
  ExpectRefused(w.View(), "g_idx[7] = -1 is not in [0, 2)");
  const GroupWeight int4 = Valid(QuantFormat::kInt4);
  WeightView view = int4.View();
  view.g_idx = view.data;
  ExpectRefused(view, "has a g_idx, which only gptq knows");
}

TEST(WeightView, NamesFormatAndGroup) {
  const auto name = [](QuantFormat format, int64_t group) {
    return DisplayName({.name = "w",
                        .format = format,
                        .n = 8,
                        .k = 1024,
                        .group_elements = group});
  };
  EXPECT_EQ(name(QuantFormat::kInt4, 128), "int4-g128");
  EXPECT_EQ(name(QuantFormat::kInt4Sym, 32), "int4s-g32");
  EXPECT_EQ(name(QuantFormat::kAwq, 64), "awq-g64");
  EXPECT_EQ(name(QuantFormat::kGptq, 256), "gptq-g256");
  EXPECT_EQ(name(QuantFormat::kInt4, 1024), "int4-pc");
  EXPECT_EQ(name(QuantFormat::kMxfp4, 0), "mxfp4");
  EXPECT_EQ(name(QuantFormat::kNvfp4, 0), "nvfp4");
  EXPECT_EQ(name(QuantFormat::kQ4_K, 0), "q4_k");
}

}  // namespace
}  // namespace nibble::kernels
