// 4-bit weights with a scale for a group, against sums in FP64, and the same
// bits whatever surrounds a row.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cpu/packed_format.h"
#include "tests/kernels/cpu/cpu_test_util.h"
#include "tests/kernels/cpu/exact_sum.h"
#include "tests/support/quantize_groups.h"

namespace nibble::test {
namespace {

using kernels::DType;
using kernels::GptqZeros;
using kernels::QuantFormat;
using kernels::WeightView;
using kernels::cpu::AvailableTargets;
using kernels::cpu::CpuTarget;

constexpr int64_t kRows = 41;
constexpr int64_t kColumns = 72;
constexpr int64_t kWidth = 384;  // two or more groups of any size

// Every kind of offset, size of group and type of scale; `group` 0 is one
// scale a row.
std::vector<GroupSpec> AllSpecs() {
  std::vector<GroupSpec> specs;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const int64_t group : {32, 64, 128, 256, 384}) {
      for (const QuantFormat format :
           {QuantFormat::kInt4, QuantFormat::kInt4Sym, QuantFormat::kAwq,
            QuantFormat::kGptq}) {
        const bool whole = kWidth % group == 0;  // as AWQ's groups must be
        if (format == QuantFormat::kAwq && !whole) continue;
        GroupSpec spec{.format = format,
                       .n = kColumns,
                       .k = kWidth,
                       .group = group,
                       .scale_dtype = dtype};
        specs.push_back(spec);
        if (format != QuantFormat::kGptq) continue;
        spec.gptq_zeros = GptqZeros::kPlain;
        specs.push_back(spec);
        spec.act_order = whole;
        if (whole) specs.push_back(spec);
      }
    }
  }
  return specs;
}

class LinearGroupsTest : public ::testing::TestWithParam<GroupSpec> {
 protected:
  Random random_{13};
};

std::string SpecName(const ::testing::TestParamInfo<GroupSpec>& info) {
  const GroupSpec& spec = info.param;
  std::string name(kernels::Name(spec.format));
  name += std::to_string(spec.group);
  if (spec.scale_dtype == DType::kBF16) name += "Bf16";
  if (spec.gptq_zeros == GptqZeros::kPlain) name += "Plain";
  return name + (spec.act_order ? "ActOrder" : "");
}

INSTANTIATE_TEST_SUITE_P(All, LinearGroupsTest, ::testing::ValuesIn(AllSpecs()),
                         SpecName);

// What the kernels see of x: its codes, in the order of the packed columns.
std::vector<double> Seen(const GroupWeight& weight, std::span<const float> x,
                         const kernels::Activations& encoded, int64_t row) {
  if (weight.g_idx.empty()) return DecodeRow(encoded, row);
  const int64_t k = weight.spec.k;
  std::vector<int64_t> order(k);
  for (int64_t j = 0; j < k; ++j) order[j] = j;
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return weight.g_idx[a] < weight.g_idx[b];
  });
  std::vector<float> sorted(k);
  for (int64_t c = 0; c < k; ++c) sorted[c] = x[row * k + order[c]];
  const std::vector<double> codes = DecodeRow(*Encode(sorted, 1, k), 0);
  std::vector<double> seen(k);
  for (int64_t c = 0; c < k; ++c) seen[order[c]] = codes[c];
  return seen;
}

TEST_P(LinearGroupsTest, MatchesExactSums) {
  const GroupWeight weight = RandomGroupWeight(GetParam(), random_);
  const std::vector<float> w = weight.Dequantized();
  constexpr int64_t kSome = 5;
  const std::vector<float> x = random_.Normals(kSome * kWidth);
  const auto activations = Encode(x, kSome, kWidth);
  const WeightView view = weight.View();
  for (const CpuTarget target : AvailableTargets()) {
    const auto backend = MakeBackend(2, target);
    const auto op = backend->MakeLinear({&view, 1}, {.name = "t"}).value();
    GuardedMatrix y(kSome, kColumns);
    op->Run({.x = activations.get(), .y = y.View()});
    for (int64_t row = 0; row < kSome; ++row) {
      const std::vector<double> seen = Seen(weight, x, *activations, row);
      for (int64_t i = 0; i < kColumns; ++i) {
        const ExactSum expected = SumExactly(
            std::span<const float>(w).subspan(i * kWidth, kWidth), seen);
        ASSERT_NEAR(y.Row(row)[i], expected.value, expected.bound)
            << row << ", " << i << " on " << kernels::cpu::TargetName(target);
      }
    }
    EXPECT_TRUE(y.GuardsAreWhole());
  }
}

TEST_P(LinearGroupsTest, ARowIsTheSameBitsWhateverIsBesideIt) {
  const GroupWeight weight = RandomGroupWeight(GetParam(), random_);
  const WeightView view = weight.View();
  const auto x = Encode(random_.Normals(kRows * kWidth), kRows, kWidth);
  GuardedMatrix alone(kRows, kColumns);
  {
    const auto backend = MakeBackend(1, CpuTarget::kPortable);
    const auto op = backend->MakeLinear({&view, 1}, {.name = "t"}).value();
    for (int64_t row = 0; row < kRows; ++row) {
      op->Run({.x = x.get(), .row_begin = row, .y = alone.View().Rows(row, 1)});
    }
  }
  for (const CpuTarget target : AvailableTargets()) {
    const auto backend = MakeBackend(3, target);
    const auto op = backend->MakeLinear({&view, 1}, {.name = "t"}).value();
    for (const int64_t rows : {1, 2, 3, 5, 8, 11, 16, 37}) {
      for (const int64_t begin : {0, 1, 3}) {
        GuardedMatrix y(rows, kColumns);
        op->Run({.x = x.get(), .row_begin = begin, .y = y.View()});
        for (int64_t row = 0; row < rows; ++row) {
          ASSERT_TRUE(SameBits(y.Row(row), alone.Row(begin + row)))
              << "row " << row << " of " << rows << " from " << begin << " on "
              << kernels::cpu::TargetName(target);
        }
        ASSERT_TRUE(y.GuardsAreWhole());
      }
    }
  }
}

TEST_P(LinearGroupsTest, GathersDequantizedRows) {
  const GroupWeight weight = RandomGroupWeight(GetParam(), random_);
  const WeightView view = weight.View();
  const auto backend = MakeBackend(2);
  const auto op =
      backend->MakeLinear({&view, 1}, {.name = "t", .gather = true}).value();
  const std::vector<int32_t> ids = {71, 0, 9, 9};
  GuardedMatrix y(4, kWidth);
  op->GatherRows(ids, y.View());
  const std::vector<float> w = weight.Dequantized();
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(SameBits(
        y.Row(i), std::span<const float>(w).subspan(ids[i] * kWidth, kWidth)));
  }
}

TEST_P(LinearGroupsTest, TakesTheFilesBytes) {
  const GroupWeight weight = RandomGroupWeight(GetParam(), random_);
  const WeightView view = weight.View();
  const auto backend = MakeBackend(1);
  const auto op = backend->MakeLinear({&view, 1}, {.name = "t"}).value();
  // A zero point takes a byte; 72 rows take panels for 80.
  const auto file = static_cast<int64_t>(
      weight.data.size() + weight.scales.size() + weight.zeros_or_mins.size());
  const int64_t zeros = weight.spec.format == QuantFormat::kAwq ||
                                weight.spec.format == QuantFormat::kGptq
                            ? view.n * view.Groups() / 2
                            : 0;
  EXPECT_LE(op->packed_bytes(), (file + zeros) * 80 / 72 + 64);
}

// q, k and v: sorted alike or each in its own order, beside one that is not.
TEST(LinearActOrderTest, StacksPartsInOrdersOfTheirOwn) {
  Random random(21);
  const GroupSpec spec{.format = QuantFormat::kGptq,
                       .n = 24,
                       .k = 256,
                       .group = 64,
                       .act_order = true};
  const GroupWeight a = RandomGroupWeight(spec, random);
  GroupWeight b = RandomGroupWeight(spec, random);
  b.g_idx = a.g_idx;
  const GroupWeight c = RandomGroupWeight(spec, random);
  const TestWeight d = RandomWeight(QuantFormat::kQ4_0, 20, 256, random);
  const std::vector<WeightView> parts = {a.View(), b.View(), c.View(),
                                         d.View()};
  const auto backend = MakeBackend(2);
  const int64_t rows = 7, begin = 2;
  const auto x = Encode(random.Normals(16 * 256), 16, 256);
  const auto op = backend->MakeLinear(parts, {.name = "qkv"}).value();
  GuardedMatrix y(rows, op->n());
  op->Run({.x = x.get(), .row_begin = begin, .y = y.View()});
  int64_t column = 0;
  for (const WeightView& part : parts) {
    const auto alone = backend->MakeLinear({&part, 1}, {.name = "t"}).value();
    GuardedMatrix part_y(rows, part.n);
    alone->Run({.x = x.get(), .row_begin = begin, .y = part_y.View()});
    for (int64_t row = 0; row < rows; ++row) {
      ASSERT_TRUE(
          SameBits(y.Row(row).subspan(column, part.n), part_y.Row(row)));
    }
    column += part.n;
  }
}

TEST(LinearActOrderTest, AsksForFloats) {
  Random random(22);
  const auto backend = MakeBackend(1);
  const GroupWeight weight = RandomGroupWeight({.format = QuantFormat::kGptq,
                                                .n = 16,
                                                .k = 128,
                                                .group = 32,
                                                .act_order = true},
                                               random);
  const WeightView view = weight.View();
  const auto op = backend->MakeLinear({&view, 1}, {.name = "t"}).value();
  const auto made = backend->MakeActivations(1, 128).value();
  std::vector<float> x = random.Normals(128);
  backend->RmsNorm(kernels::TensorView::F32(x.data(), 1, 128),
                   std::vector<float>(128, 1.0f).data(), 1e-5f, made.get());
  const auto& floats = static_cast<const kernels::cpu::CpuActivations&>(*made);
  const auto again =
      Encode({floats.FloatRow(0), static_cast<size_t>(128)}, 1, 128);
  GuardedMatrix y(1, 16), want(1, 16);
  op->Run({.x = made.get(), .y = y.View()});
  op->Run({.x = again.get(), .y = want.View()});
  EXPECT_TRUE(SameBits(y.Row(0), want.Row(0)));
}

TEST(LinearGroupsRefusalTest, NamesWhatDoesNotFit) {
  Random random(23);
  const auto backend = MakeBackend(1);
  const auto refusal = [&](const GroupWeight& weight) {
    const WeightView view = weight.View();
    const absl::Status status =
        backend->MakeLinear({&view, 1}, {.name = "layer"}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    const std::string message(status.message());
    EXPECT_NE(message.find("'" + weight.name + "'"), std::string::npos)
        << message;
    return message;
  };
  GroupWeight weight = RandomGroupWeight(
      {.format = QuantFormat::kInt4, .n = 8, .k = 80, .group = 32}, random);
  EXPECT_NE(refusal(weight).find("k = 80 is no multiple of 32"),
            std::string::npos);
  weight = RandomGroupWeight({.format = QuantFormat::kGptq,
                              .n = 8,
                              .k = 128,
                              .group = 32,
                              .act_order = true},
                             random);
  const auto first = std::find(weight.g_idx.begin(), weight.g_idx.end(), 0);
  *first = 1;
  EXPECT_NE(refusal(weight).find("g_idx gives group 0 fewer than 32 columns"),
            std::string::npos);
  for (const QuantFormat format : {QuantFormat::kMxfp4, QuantFormat::kNvfp4}) {
    weight = RandomGroupWeight({.format = format, .n = 16, .k = 64}, random);
    EXPECT_NE(refusal(weight).find("its format " +
                                   std::string(kernels::Name(format))),
              std::string::npos);
  }
}

}  // namespace
}  // namespace nibble::test
