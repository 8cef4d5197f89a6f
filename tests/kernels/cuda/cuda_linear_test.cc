#include "kernels/cuda/linear/cuda_linear.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/linear/cuda_activations.h"
#include "kernels/cuda/linear/pack.h"
#include "kernels/reference/dequant.h"
#include "tests/kernels/cuda/layer_test.h"
#include "tests/kernels/cuda/w4_reference.h"
#include "tests/support/quantize.h"
#include "tests/support/random.h"

namespace nibble::test {
namespace {

using kernels::DType;
using kernels::Epilogue;
using kernels::LinearOptions;
using kernels::QuantFormat;
using kernels::TensorView;
using kernels::WeightView;
using kernels::cuda::ColdTimer;
using kernels::cuda::CudaActivations;
using kernels::cuda::CudaLinear;
using kernels::cuda::DeviceBuffer;

constexpr char kName[] = "blk.0.test";
constexpr int64_t kMaxRows = 70;
constexpr int64_t kK = 768;
// Of the checks below: one row, a few, and all.
constexpr std::array<int64_t, 4> kRows = {1, 9, 33, kMaxRows};

class CudaLinearTest : public LayerTest {
 protected:
  CaseWeight Weight(const std::string& name, int64_t n, int64_t k = kK) {
    return LayerTest::Weight(name, n, k);
  }

  absl::StatusOr<std::unique_ptr<CudaLinear>> Make(
      const std::vector<WeightView>& parts,
      LinearOptions options = {.name = kName}) {
    options.max_rows = kMaxRows;
    return CudaLinear::Create(parts, options, context_);
  }

  std::string WhyNot(const std::vector<WeightView>& parts,
                     const LinearOptions& options = {.name = kName}) {
    const auto op = Make(parts, options);
    EXPECT_EQ(op.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(op.status().message());
  }

  // Activations that hold the rows of x, from row `first` on.
  std::unique_ptr<CudaActivations> Upload(const Inputs& x, int64_t first) {
    return LayerTest::Upload(x, kMaxRows, first);
  }

  // What y [rows, n] holds after a call; `before`: what it held, or empty.
  Result Run(const CudaLinear& op, const CudaActivations& x, int64_t first,
             int64_t rows, DType y_dtype, std::span<const float> before = {}) {
    const int64_t n = op.n();
    const int64_t size = kernels::ElementBytes(y_dtype);
    y_ = DeviceBuffer::Make(rows * n * size).value();
    NIBBLE_CUDA_CHECK(
        cudaMemsetAsync(y_.data(), 0xff, y_.bytes(), stream_->get()));
    if (!before.empty()) y_ = ToDevice<std::byte>(Encode(y_dtype, before));
    op.Run({.x = &x,
            .row_begin = first,
            .y = {y_.data(), y_dtype, rows, n, n},
            .epilogue = before.empty() ? Epilogue::kStore : Epilogue::kAdd});
    stream_->Synchronize();
    host_.resize(static_cast<size_t>(y_.bytes()));
    NIBBLE_CUDA_CHECK(cudaMemcpy(host_.data(), y_.data(), host_.size(),
                                 cudaMemcpyDeviceToHost));
    return {.data = host_.data(), .pitch_bytes = n * size, .dtype = y_dtype};
  }

  // Compares the columns of every part with FP64.
  void CheckParts(const CudaLinear& op, const std::vector<WeightView>& parts,
                  const Inputs& x, std::span<const float> bias = {}) {
    const int64_t first = 3;
    const auto activations = Upload(x, first);
    std::vector<Reference> references;
    int64_t column = 0;
    for (const WeightView& part : parts) {
      references.push_back(Reference::Make(x, part, SampleColumns(part.n)));
      Reference& reference = references.back();
      for (size_t c = 0; c < reference.columns.size(); ++c) {
        reference.columns[c] += column;
        for (int64_t i = 0; !bias.empty() && i < reference.m; ++i) {
          reference.value[c * reference.m + i] += bias[reference.columns[c]];
        }
      }
      column += part.n;
    }
    ASSERT_EQ(op.n(), column);
    for (const DType y_dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const int64_t rows : kRows) {
        const Result result = Run(op, *activations, first, rows, y_dtype);
        for (size_t p = 0; p < parts.size(); ++p) {
          ASSERT_EQ(Compare(result, references[p], rows), "")
              << "part " << p << " rows " << rows << " y "
              << static_cast<int>(y_dtype);
        }
      }
    }
  }

  DeviceBuffer y_;
  std::vector<std::byte> host_;
};

TEST_F(CudaLinearTest, MultipliesByWeightsOfEveryKind) {
  for (const WeightCase& weight_case : WeightCases()) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(weight_case.name);
      context_.x_dtype = dtype;
      const CaseWeight weight = Weight(weight_case.name, 328);
      const auto op = Make({weight.View()});
      ASSERT_TRUE(op.ok()) << op.status();
      EXPECT_GE((*op)->packed_bytes(), 328 * kK / 2);
      EXPECT_EQ((*op)->k(), kK);
      CheckParts(**op, {weight.View()}, Inputs::Normal(dtype, kK));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaLinearTest, StacksPartsInOneLaunch) {
  constexpr int64_t kN = 568 + 72 + 72;
  const std::vector<float> bias = random_.Normals(kN, 10);
  for (const char* name : {"int4_g128", "q4_k", "awq_g64", "mxfp4"}) {
    SCOPED_TRACE(name);
    const CaseWeight q = Weight(name, 568), k = Weight(name, 72),
                     v = Weight(name, 72);
    const std::vector<WeightView> parts = {q.View(), k.View(), v.View()};
    const auto op = Make(parts, {.name = kName, .bias = bias.data()});
    ASSERT_TRUE(op.ok()) << op.status();
    // 45 tiles; one by one the parts would take 36, 5 and 5.
    EXPECT_EQ((*op)->packed_bytes(),
              kernels::cuda::PackedBytes(
                  kernels::cuda::W4LayoutOf(parts[0]).value(), kN, kK));
    CheckParts(**op, parts, Inputs::Normal(DType::kBF16, kK), bias);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaLinearTest, StacksPartsOfSeveralFormats) {
  const CaseWeight q = Weight("q4_k", 320), k = Weight("q4_k", 72),
                   v = Weight("q4_0", 72), w = Weight("nvfp4", 24),
                   u = Weight("nvfp4", 24);  // of another tensor scale
  const std::vector<WeightView> parts = {q.View(), k.View(), v.View(), w.View(),
                                         u.View()};
  const std::vector<float> bias = random_.Normals(512, 10);
  const auto op = Make(parts, {.name = kName, .bias = bias.data()});
  ASSERT_TRUE(op.ok()) << op.status();
  CheckParts(**op, parts, Inputs::Normal(DType::kBF16, kK), bias);
}

TEST_F(CudaLinearTest, StacksPartsOfSeveralColumnOrders) {
  const CaseWeight a = Weight("gptq_order_g128", 64),
                   b = Weight("gptq_order_g128", 72),
                   c = Weight("gptq_g128", 64);
  const std::vector<WeightView> parts = {a.View(), b.View(), c.View()};
  const auto op = Make(parts);
  ASSERT_TRUE(op.ok()) << op.status();
  CheckParts(**op, parts, Inputs::Normal(DType::kBF16, kK));
}

TEST_F(CudaLinearTest, AddsToTheResidual) {
  const CaseWeight weight = Weight("q4_0", 72);
  const auto op = Make({weight.View()}).value();
  const Inputs& x = Inputs::Normal(DType::kBF16, kK);
  const auto activations = Upload(x, 0);
  Reference reference = Reference::Make(x, weight.View(), SampleColumns(72));
  const std::vector<float> before = random_.Normals(kMaxRows * 72, 10);
  for (size_t c = 0; c < reference.columns.size(); ++c) {
    for (int64_t i = 0; i < kMaxRows; ++i) {
      reference.value[c * reference.m + i] +=
          before[i * 72 + reference.columns[c]];
    }
  }
  const Result result =
      Run(*op, *activations, 0, kMaxRows, DType::kF32, before);
  EXPECT_EQ(Compare(result, reference, kMaxRows), "");
}

TEST_F(CudaLinearTest, FusesGateAndUp) {
  for (const char* name : {"int4_g128", "gptq_order_g128", "q4_k"}) {
    // Whole tiles: the last bits of a sum depend on which half of a tile the
    // row of W stands in (docs/kernels.md), and must not differ here.
    for (const int64_t f : {int64_t{80}, int64_t{1440}}) {
      SCOPED_TRACE(name);
      CaseWeight gate = Weight(name, f), up = Weight(name, f);
      if (gate.View().g_idx != nullptr) {
        up.groups().g_idx = gate.groups().g_idx;
      }
      const auto fused =
          Make({gate.View(), up.View()}, {.name = kName, .silu_mul = true})
              .value();
      ASSERT_EQ(fused->n(), f);
      const auto plain = Make({gate.View(), up.View()}).value();
      const auto x = Upload(Inputs::Normal(DType::kBF16, kK), 0);
      const Result sums = Run(*plain, *x, 0, kMaxRows, DType::kF32);
      std::vector<float> expected, gates, ups;
      for (int64_t i = 0; i < kMaxRows; ++i) {
        for (int64_t j = 0; j < f; ++j) {
          const double g = sums.At(i, j);
          gates.push_back(static_cast<float>(g));
          ups.push_back(static_cast<float>(sums.At(i, f + j)));
          expected.push_back(
              static_cast<float>(g / (1 + std::exp(-g)) * ups.back()));
        }
      }
      const Result result = Run(*fused, *x, 0, kMaxRows, DType::kF32);
      for (int64_t i = 0; i < kMaxRows * f; ++i) {
        // The sums are the same bits; exp, quotient and product round.
        ASSERT_NEAR(result.At(i / f, i % f), expected[i],
                    std::fabs(expected[i]) * 0x1p-20 + 0x1p-100)
            << i << ": gate " << gates[i] << ", up " << ups[i];
      }
    }
  }
}

TEST_F(CudaLinearTest, GathersRowsExactly) {
  for (const WeightCase& weight_case : WeightCases()) {
    SCOPED_TRACE(weight_case.name);
    const CaseWeight a = Weight(weight_case.name, 72), b = Weight("q4_0", 64);
    const auto op =
        Make({a.View(), b.View()}, {.name = kName, .gather = true}).value();
    const std::vector<int32_t> ids = {0, 71, 72, 135, 5, 5, 40, 100};
    const auto rows = static_cast<int64_t>(ids.size());
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      const int64_t size = kernels::ElementBytes(dtype);
      const int64_t pitch = kK + 8;
      y_ = DeviceBuffer::Make(rows * pitch * size).value();
      op->GatherRows(ids, {y_.data(), dtype, rows, kK, pitch});
      stream_->Synchronize();
      std::vector<std::byte> y(static_cast<size_t>(y_.bytes()));
      NIBBLE_CUDA_CHECK(
          cudaMemcpy(y.data(), y_.data(), y.size(), cudaMemcpyDeviceToHost));
      std::vector<float> row(kK);
      for (int64_t i = 0; i < rows; ++i) {
        const WeightView view = ids[i] < 72 ? a.View() : b.View();
        kernels::reference::DequantizeRow(view, ids[i] % 72, row.data());
        const std::vector<std::byte> expected = Encode(dtype, row);
        ASSERT_EQ(std::memcmp(y.data() + i * pitch * size, expected.data(),
                              expected.size()),
                  0)
            << "row " << ids[i] << " type " << static_cast<int>(dtype);
      }
      op->GatherRows({}, {y_.data(), dtype, 0, kK, pitch});
    }
  }
}

TEST_F(CudaLinearTest, NoRowsAreANoOp) {
  const CaseWeight weight = Weight("q4_0", 64);
  const auto op = Make({weight.View()}).value();
  op->Run({.y = {nullptr, DType::kF32, 0, 64, 64}});
  stream_->Synchronize();
}

TEST_F(CudaLinearTest, MeasuresAShapeOnce) {
  auto timer = ColdTimer::Make(context_.device, stream_.get()).value();
  context_.timer = timer.get();
  context_.tune_seconds = 30;
  const CaseWeight weight = Weight("int4_g128", 576);
  const auto measured = Make({weight.View()}).value();
  for (const auto& bucket : measured->plan().buckets()) {
    EXPECT_GT(bucket.us, 0) << measured->plan().ToString();
  }
  context_.timer = nullptr;  // only kept plans have times now
  const auto kept = Make({weight.View()}).value();
  EXPECT_EQ(kept->plan().ToString(), measured->plan().ToString());
  const CaseWeight other = Weight("int4_g128", 592);
  EXPECT_EQ(Make({other.View()}).value()->plan().buckets()[0].us, 0);
  CheckParts(*measured, {weight.View()}, Inputs::Normal(DType::kBF16, kK));
}

TEST_F(CudaLinearTest, SaysWhatItCannotRun) {
  const TestWeight q6 = RandomWeight(QuantFormat::kQ6_K, 64, kK, random_);
  const CaseWeight a = Weight("q4_0", 64), b = Weight("q4_0", 64, 512),
                   c = Weight("q4_0", 72), d = Weight("q4_1", 64);
  EXPECT_NE(WhyNot({q6.View()}).find("q6_k"), std::string::npos);
  EXPECT_NE(WhyNot({}).find(kName), std::string::npos);
  const std::string k_differs = WhyNot({a.View(), b.View()});
  EXPECT_NE(k_differs.find("512"), std::string::npos) << k_differs;
  EXPECT_NE(k_differs.find("768"), std::string::npos) << k_differs;
  WhyNot({a.View()}, {.name = kName, .silu_mul = true});
  WhyNot({a.View(), c.View()}, {.name = kName, .silu_mul = true});
  WhyNot({a.View(), d.View()}, {.name = kName, .silu_mul = true});
  const std::vector<float> bias(64);
  WhyNot({a.View(), a.View()},
         {.name = kName, .bias = bias.data(), .silu_mul = true});
  WhyNot({a.View(), a.View()},
         {.name = kName, .gather = true, .silu_mul = true});
  WeightView odd = a.View();
  odd.k = 760;
  EXPECT_NE(WhyNot({odd}).find("no multiple of 32"), std::string::npos);
}

}  // namespace
}  // namespace nibble::test
