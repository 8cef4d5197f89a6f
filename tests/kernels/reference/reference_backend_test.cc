#include "kernels/reference/reference_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/reference/ops.h"
#include "tests/support/quantize.h"
#include "tests/support/quantize_groups.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace nibble::kernels {
namespace {

using test::kEpsilonF32;
using test::Random;
using test::RelativeError;
using test::TestWeight;
using testing::HasSubstr;

// Norms the rows of *x [rows, k], both into activations and in place: what an
// op then multiplies is known bit for bit.
std::unique_ptr<Activations> Normed(Backend& backend, std::vector<float>* x,
                                    int64_t rows, int64_t k) {
  auto activations = backend.MakeActivations(rows, k);
  EXPECT_TRUE(activations.ok());
  const std::vector<float> ones(k, 1.0f);
  backend.RmsNorm(TensorView::F32(x->data(), rows, k), ones.data(), 1e-5f,
                  activations->get());
  for (int64_t row = 0; row < rows; ++row) {
    float* at = x->data() + row * k;
    reference::RmsNormRow(std::vector<float>(at, at + k).data(), ones.data(),
                          1e-5f, k, at);
  }
  return std::move(*activations);
}

// x [rows, k] times the transpose of w [n, k], plus bias.
std::vector<float> NaiveProduct(const std::vector<float>& x,
                                const std::vector<float>& w, int64_t k,
                                const std::vector<float>& bias) {
  const auto n = static_cast<int64_t>(w.size()) / k;
  std::vector<float> y;
  for (size_t row = 0; row < x.size() / k; ++row) {
    for (int64_t column = 0; column < n; ++column) {
      long double sum = bias.empty() ? 0 : bias[column];
      for (int64_t i = 0; i < k; ++i) {
        sum += static_cast<long double>(x[row * k + i]) * w[column * k + i];
      }
      y.push_back(static_cast<float>(sum));
    }
  }
  return y;
}

std::vector<float> Joined(const std::vector<float>& a,
                          const std::vector<float>& b) {
  std::vector<float> all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

class EveryLinearFormat : public testing::TestWithParam<FormatInfo> {};

INSTANTIATE_TEST_SUITE_P(ReferenceLinear, EveryLinearFormat,
                         testing::ValuesIn(kFormatTable), [](const auto& info) {
                           return std::string(info.param.name);
                         });

TEST_P(EveryLinearFormat, MultipliesStackedPartsWithBias) {
  const auto backend = MakeReferenceBackend();
  Random random(1);
  const int64_t k = GetParam().block_elements == 1 ? 13 : 256;
  TestWeight first = test::RandomWeight(GetParam().format, 7, k, random);
  const TestWeight second = test::RandomWeight(QuantFormat::kF32, 4, k, random);
  first.Misalign(1);
  const std::vector<float> bias = random.Normals(11);
  const WeightView parts[] = {first.View(), second.View()};
  const auto op =
      backend->MakeLinear(parts, {.name = "test", .bias = bias.data()});
  ASSERT_TRUE(op.ok()) << op.status();
  EXPECT_EQ((*op)->n(), 11);
  EXPECT_EQ((*op)->k(), k);
  EXPECT_EQ((*op)->packed_bytes(), 11 * k * 4);
  std::vector<float> x = random.Normals(5 * k);
  const auto activations = Normed(*backend, &x, 5, k);
  std::vector<float> y(5 * 11);
  (*op)->Run({.x = activations.get(), .y = TensorView::F32(y.data(), 5, 11)});
  EXPECT_LE(
      RelativeError(
          y, NaiveProduct(x, Joined(first.Dequantized(), second.Dequantized()),
                          k, bias)),
      kEpsilonF32);
}

TEST_P(EveryLinearFormat, GathersRows) {
  const auto backend = MakeReferenceBackend();
  Random random(2);
  const int64_t k = 256;
  const TestWeight weight = test::RandomWeight(GetParam().format, 9, k, random);
  const WeightView part = weight.View();
  const auto op = backend->MakeLinear(
      {&part, 1}, {.name = "embedding", .gather = true, .multiply = false});
  ASSERT_TRUE(op.ok()) << op.status();
  const std::vector<int32_t> ids = {8, 0, 3, 3};
  std::vector<float> y(4 * k);
  (*op)->GatherRows(ids, TensorView::F32(y.data(), 4, k));
  const std::vector<float> w = weight.Dequantized();
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(std::memcmp(&y[i * k], &w[ids[i] * k], k * sizeof(float)), 0);
  }
}

TEST(ReferenceLinear, MultipliesFormatsOfSeparateArrays) {
  const auto backend = MakeReferenceBackend();
  Random random(3);
  for (const FormatInfo& info : kGroupFormatTable) {
    const test::GroupWeight weight =
        test::RandomGroupWeight({.format = info.format,
                                 .n = 16,
                                 .k = 64,
                                 .group = info.group_elements == 0 ? 32 : 0},
                                random);
    WeightView part = weight.View();
    const auto op = backend->MakeLinear({&part, 1}, {.name = "test"});
    ASSERT_TRUE(op.ok()) << op.status();
    std::vector<float> x = random.Normals(5 * 64);
    const auto activations = Normed(*backend, &x, 5, 64);
    std::vector<float> y(5 * 16);
    (*op)->Run({.x = activations.get(), .y = TensorView::F32(y.data(), 5, 16)});
    EXPECT_LE(RelativeError(y, NaiveProduct(x, weight.Dequantized(), 64, {})),
              kEpsilonF32)
        << info.name;
    part.scales = nullptr;
    const auto refused = backend->MakeLinear({&part, 1}, {.name = "test"});
    EXPECT_THAT(std::string(refused.status().message()),
                HasSubstr("has no scales"));
  }
}

// A linear op with n = 10, k = 96 and activations of 6 rows.
struct LinearCase {
  static constexpr int64_t kN = 10;
  static constexpr int64_t kK = 96;
  static constexpr int64_t kRows = 6;

  explicit LinearCase(int threads)
      : backend(MakeReferenceBackend({.threads = threads})) {
    Random random(3);
    const TestWeight weight =
        test::RandomWeight(QuantFormat::kQ4_1, kN, kK, random);
    const WeightView part = weight.View();
    op = std::move(*backend->MakeLinear({&part, 1}, {.name = "test"}));
    std::vector<float> x = random.Normals(kRows * kK);
    activations = Normed(*backend, &x, kRows, kK);
  }

  std::vector<float> Run(int64_t begin, int64_t rows) const {
    std::vector<float> y(rows * kN);
    op->Run({.x = activations.get(),
             .row_begin = begin,
             .y = TensorView::F32(y.data(), rows, kN)});
    return y;
  }

  std::unique_ptr<Backend> backend;
  std::unique_ptr<LinearOp> op;
  std::unique_ptr<Activations> activations;
};

TEST(ReferenceLinear, RowsAreTheSameBitsAloneAndTogetherAndThreaded) {
  const LinearCase one(1);
  const std::vector<float> all = one.Run(0, LinearCase::kRows);
  for (const int threads : {1, 3, 16}) {
    const LinearCase many(threads);
    EXPECT_EQ(many.Run(0, LinearCase::kRows), all) << threads;
    for (int64_t row = 0; row < LinearCase::kRows; ++row) {
      const auto expected = all.begin() + row * LinearCase::kN;
      EXPECT_EQ(many.Run(row, 1),
                std::vector<float>(expected, expected + LinearCase::kN));
    }
  }
}

TEST(ReferenceLinear, AddsToWhatIsThere) {
  const LinearCase linear(1);
  const std::vector<float> product = linear.Run(1, 2);
  // A view of two rows with a gap after each.
  constexpr int64_t kStride = LinearCase::kN + 3;
  std::vector<float> y(2 * kStride, 0.5f);
  linear.op->Run({.x = linear.activations.get(),
                  .row_begin = 1,
                  .y = {.data = y.data(),
                        .rows = 2,
                        .cols = LinearCase::kN,
                        .row_stride = kStride},
                  .epilogue = Epilogue::kAdd});
  for (int64_t i = 0; i < 2 * kStride; ++i) {
    const int64_t column = i % kStride;
    if (column >= LinearCase::kN) {
      EXPECT_EQ(y[i], 0.5f);
      continue;
    }
    const float added = product[i / kStride * LinearCase::kN + column];
    EXPECT_NEAR(y[i], 0.5f + added, kEpsilonF32 * (0.5f + std::fabs(added)));
  }
}

TEST(ReferenceLinear, OfNoRowsDoesNothing) {
  const LinearCase linear(1);
  EXPECT_TRUE(linear.Run(3, 0).empty());
  linear.op->Run({.x = linear.activations.get(),
                  .y = TensorView::F32(nullptr, 0, LinearCase::kN)});
}

TEST(ReferenceLinear, HasAPlanOfOneKernel) {
  EXPECT_EQ(LinearCase(1).op->plan().ToString(), "1.. narrow:dot_f64");
}

TEST(ReferenceLinear, NamesTheTensorItRefuses) {
  const auto backend = MakeReferenceBackend();
  Random random(4);
  const TestWeight good = test::RandomWeight(QuantFormat::kF32, 2, 32, random);
  const auto refusal = [&](std::vector<WeightView> parts) {
    const auto op = backend->MakeLinear(parts, {.name = "test"});
    EXPECT_EQ(op.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(op.status().message());
  };
  WeightView other = good.View();
  other.name = "blk.0.attn_k.weight";
  other.k = 16;
  EXPECT_THAT(refusal({good.View(), other}),
              HasSubstr("blk.0.attn_k.weight: 16 columns"));
  other.format = QuantFormat::kQ4_K;
  EXPECT_THAT(refusal({other}),
              HasSubstr("multiple of 256, the block of q4_k"));
  other.n = 0;
  EXPECT_THAT(refusal({other}),
              HasSubstr("blk.0.attn_k.weight: shape [0, 16]"));
  other.n = int64_t{1} << 62;
  other.k = 256;
  const auto huge = backend->MakeLinear({&other, 1}, {.name = "test"});
  EXPECT_EQ(huge.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(ReferenceLinear, HasNoFusedSilu) {
  Random random(4);
  const TestWeight weight =
      test::RandomWeight(QuantFormat::kF32, 2, 32, random);
  const std::vector<WeightView> parts = {weight.View(), weight.View()};
  const absl::Status status =
      MakeReferenceBackend()
          ->MakeLinear(parts, {.name = "test", .silu_mul = true})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("test"));
}

TEST(ReferenceLinearDeathTest, RunsOnlyWhatItWasMadeFor) {
  const LinearCase linear(1);
  const std::vector<int32_t> ids = {0};
  std::vector<float> y(LinearCase::kK);
  EXPECT_DEATH(
      linear.op->GatherRows(ids, TensorView::F32(y.data(), 1, LinearCase::kK)),
      "gather");
  EXPECT_DEATH(linear.Run(5, 2), "max_rows");
}

// Two sequences in one step: one generated token at position 4, and three
// prompt tokens at positions 0 to 2; pages of two tokens.
struct StepCase {
  std::vector<int32_t> positions = {4, 0, 1, 2};
  std::vector<int64_t> slots = {2, 8, 9, 6};
  std::vector<int32_t> row_begin = {0, 1, 4};
  std::vector<int32_t> page_begin = {0, 3, 5};
  std::vector<int32_t> page_ids = {0, 2, 1, 4, 3};

  StepLayout Layout() const {
    return {.rows = 4,
            .decode_rows = 1,
            .positions = positions,
            .slots = slots,
            .row_begin = row_begin,
            .page_begin = page_begin,
            .page_ids = page_ids};
  }
};

TEST(ReferenceBackend, AttendsEachSequenceInItsOwnPages) {
  constexpr int32_t kHeads = 4;
  constexpr int32_t kKvHeads = 2;
  constexpr int32_t kDim = 6;
  const auto backend = MakeReferenceBackend();
  EXPECT_EQ(backend->kv_dtype(), DType::kF32);
  const int64_t page_bytes = 5 * 2 * kKvHeads * kDim * 4;
  const auto k_pages = std::move(*backend->Allocate(page_bytes));
  const auto v_pages = std::move(*backend->Allocate(page_bytes));
  const KvLayerView kv = {.k = k_pages->data(),
                          .v = v_pages->data(),
                          .dtype = DType::kF32,
                          .page_size = 2,
                          .kv_heads = kKvHeads,
                          .head_dim = kDim};
  Random random(5);
  // What sequence 0 wrote in steps before.
  for (const int64_t slot : {0, 1, 4, 5}) {
    const std::vector<float> past = random.Normals(2 * kKvHeads * kDim);
    reference::WriteKvRow(past.data(), past.data() + kKvHeads * kDim, slot, kv);
  }
  const StepCase step;
  backend->BeginStep(step.Layout());
  const RopeParams rope = {.inverse_frequency = {1, 0.5f, 0.1f}};
  // q, k and v as columns of one product, as a model has them.
  constexpr int64_t kWidth = (kHeads + 2 * kKvHeads) * kDim;
  std::vector<float> qkv = random.Normals(4 * kWidth);
  const std::vector<float> before = qkv;
  const TensorView all = TensorView::F32(qkv.data(), 4, kWidth);
  const TensorView q = all.Cols(0, kHeads * kDim);
  const TensorView k = all.Cols(kHeads * kDim, kKvHeads * kDim);
  const TensorView v = all.Cols((kHeads + kKvHeads) * kDim, kKvHeads * kDim);
  backend->RopeAndWriteKv(q, k, v, rope, kv);
  const AttentionShape shape = {
      .heads = kHeads, .kv_heads = kKvHeads, .head_dim = kDim, .scale = 0.4f};
  const auto out = std::move(*backend->MakeActivations(4, kHeads * kDim));
  backend->Attention(q, kv, shape, out.get());

  // The activations are read through an identity matrix.
  std::vector<float> identity(kHeads * kDim * kHeads * kDim);
  for (int64_t i = 0; i < kHeads * kDim; ++i) {
    identity[i * (kHeads * kDim + 1)] = 1;
  }
  const TestWeight weight(QuantFormat::kF32, kHeads * kDim, kHeads * kDim,
                          identity);
  const WeightView part = weight.View();
  const auto read = std::move(*backend->MakeLinear({&part, 1}, {}));
  std::vector<float> attended(4 * kHeads * kDim);
  read->Run({.x = out.get(),
             .y = TensorView::F32(attended.data(), 4, kHeads * kDim)});

  for (int32_t row = 0; row < 4; ++row) {
    std::vector<float> turned(before.begin() + row * kWidth,
                              before.begin() + (row + 1) * kWidth);
    reference::RopeRow(rope, step.positions[row], kHeads + kKvHeads, kDim,
                       turned.data());
    EXPECT_EQ(std::vector<float>(qkv.begin() + row * kWidth,
                                 qkv.begin() + (row + 1) * kWidth),
              turned);
    const auto* written =
        static_cast<const float*>(kv.k) + step.slots[row] * kKvHeads * kDim;
    EXPECT_EQ(std::memcmp(written, turned.data() + kHeads * kDim,
                          kKvHeads * kDim * sizeof(float)),
              0);
    const std::vector<int32_t> pages =
        row == 0 ? std::vector<int32_t>{0, 2, 1} : std::vector<int32_t>{4, 3};
    std::vector<float> expected(kHeads * kDim);
    reference::AttentionOneRow({.q = turned.data(),
                                .position = step.positions[row],
                                .page_ids = pages},
                               kv, shape, expected.data());
    EXPECT_EQ(std::vector<float>(attended.begin() + row * kHeads * kDim,
                                 attended.begin() + (row + 1) * kHeads * kDim),
              expected);
  }
}

TEST(ReferenceBackend, CopiesRowsAndBytes) {
  const auto backend = MakeReferenceBackend();
  std::vector<float> x = {1, 2, 3, 4, 5, 6};
  std::vector<float> out(4);
  const std::vector<int32_t> rows = {2, 0};
  backend->CopyRows(TensorView::F32(x.data(), 3, 2), rows,
                    TensorView::F32(out.data(), 2, 2));
  EXPECT_EQ(out, (std::vector<float>{5, 6, 1, 2}));
  const auto buffer = std::move(*backend->Allocate(8));
  backend->CopyToDevice(buffer->data(), x.data(), 8);
  std::vector<float> back(2);
  backend->CopyToHost(back.data(), buffer->data(), 8);
  EXPECT_EQ(back, (std::vector<float>{1, 2}));
}

TEST(ReferenceBackend, SamplesEachRowByItsOwnParameters) {
  const auto backend = MakeReferenceBackend();
  std::vector<float> logits = {1, 3, 2, 5, 5, 0};
  const SamplingParams greedy;
  const SamplingParams biased = {.logit_bias = {{2, 9.0f}}};
  const SampleRow rows[] = {{.params = &greedy, .num_logprobs = 1},
                            {.params = &biased}};
  std::vector<SampleResult> results(2);
  backend->Sample(TensorView::F32(logits.data(), 2, 3), rows, results);
  EXPECT_EQ(results[0].token, 1);
  EXPECT_EQ(results[0].top.size(), 1u);
  EXPECT_EQ(results[1].token, 2);
}

TEST(ReferenceBackend, MultipliesSilu) {
  const auto backend = MakeReferenceBackend();
  Random random(6);
  std::vector<float> gate_up = random.Normals(2 * 6);
  const auto out = std::move(*backend->MakeActivations(2, 3));
  backend->SiluMul(TensorView::F32(gate_up.data(), 2, 6), out.get());
  const std::vector<float> identity = {1, 0, 0, 0, 1, 0, 0, 0, 1};
  const TestWeight weight(QuantFormat::kF32, 3, 3, identity);
  const WeightView part = weight.View();
  const auto read = std::move(*backend->MakeLinear({&part, 1}, {}));
  std::vector<float> y(6);
  read->Run({.x = out.get(), .y = TensorView::F32(y.data(), 2, 3)});
  std::vector<float> expected(6);
  reference::SiluMulRow(gate_up.data(), 3, expected.data());
  reference::SiluMulRow(gate_up.data() + 6, 3, expected.data() + 3);
  EXPECT_EQ(y, expected);
}

TEST(ReferenceBackend, SaysWhatItIsAndWhereTimeWent) {
  LinearCase linear(2);
  EXPECT_EQ(linear.backend->name(), "reference");
  EXPECT_EQ(linear.backend->description(),
            "scalar FP32 with FP64 sums, 2 threads");
  linear.Run(0, LinearCase::kRows);
  EXPECT_GT(linear.backend->TakeTimings().linear_seconds, 0);
  EXPECT_EQ(linear.backend->TakeTimings().linear_seconds, 0);
}

}  // namespace
}  // namespace nibble::kernels
