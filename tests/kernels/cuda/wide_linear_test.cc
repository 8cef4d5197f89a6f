#include "kernels/cuda/linear/wide_linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cuda/linear/cuda_activations.h"
#include "kernels/cuda/linear/cuda_linear.h"
#include "kernels/cuda/linear/pack.h"
#include "kernels/cuda/linear/w8a8.h"
#include "kernels/cuda/quantize/quantize.h"
#include "kernels/reference/quantize.h"
#include "kernels/reference/w8a8_gemm.h"
#include "kernels/weight_quantize.h"
#include "tests/kernels/cuda/layer_test.h"

namespace nibble::test {
namespace {

using kernels::ByteCode;
using kernels::ByteScaling;
using kernels::DType;
using kernels::Epilogue;
using kernels::LinearOptions;
using kernels::LinearPath;
using kernels::WeightView;
using kernels::WidePacking;
using kernels::cuda::CudaActivations;
using kernels::cuda::CudaLinear;
using kernels::cuda::DeviceBuffer;
using kernels::cuda::W8Kind;
using kernels::reference::CodedDot;
using kernels::reference::CodedMatrix;
using kernels::reference::CodeType;

constexpr int64_t kMaxRows = 200;
constexpr int64_t kK = 768;
constexpr int64_t kFirst = 3;  // row of the activations that a call begins with

// Codes of rows, each with a scale.
struct CodedRows {
  WidePacking packing;
  std::vector<uint8_t> codes;
  std::vector<float> scales;

  CodedMatrix View() const {
    return {.type = packing == WidePacking::kInt8 ? CodeType::kInt8
                                                  : CodeType::kE4m3,
            .codes = codes,
            .k = kK,
            .grid = {.scales = scales, .rows = 1, .row_step = 1}};
  }
};

CodedRows EncodeRows(WidePacking packing, const Inputs& x, int64_t rows) {
  CodedRows coded{packing, std::vector<uint8_t>(rows * kK), {}};
  for (int64_t i = 0; i < rows; ++i) {
    std::vector<float> row(kK);
    for (int64_t j = 0; j < kK; ++j) {
      row[j] = static_cast<float>(x.Column(j)[i]);
    }
    uint8_t* const to = coded.codes.data() + i * kK;
    coded.scales.push_back(
        packing == WidePacking::kInt8
            ? kernels::reference::QuantizeInt8(row,
                                               kernels::Int8Range::kSymmetric,
                                               reinterpret_cast<int8_t*>(to))
                  .scale
            : kernels::reference::QuantizeFp8(row, kernels::Fp8::kE4m3, to));
  }
  return coded;
}

CodedRows RoundWeights(WidePacking packing,
                       const std::vector<WeightView>& parts) {
  CodedRows coded{packing, {}, {}};
  for (const WeightView& part : parts) {
    const kernels::ByteWeight bytes =
        kernels::QuantizeWeight(
            part, {.code = packing == WidePacking::kInt8 ? ByteCode::kInt8
                                                         : ByteCode::kE4m3,
                   .scaling = ByteScaling::kChannel})
            .value();
    coded.codes.insert(coded.codes.end(), bytes.codes.begin(),
                       bytes.codes.end());
    coded.scales.insert(coded.scales.end(), bytes.scales.begin(),
                        bytes.scales.end());
  }
  return coded;
}

class WideLinearTest : public LayerTest {
 protected:
  void SetUp() override {
    LayerTest::SetUp();
    if (IsSkipped()) return;
    if (const absl::Status status =
            CheckW8Device(W8Kind::kE4m3, context_.device);
        !status.ok()) {
      GTEST_SKIP() << status;
    }
  }

  CaseWeight Weight(const std::string& name, int64_t n, int64_t k = kK) {
    return LayerTest::Weight(name, n, k);
  }

  std::unique_ptr<CudaLinear> Make(const std::vector<WeightView>& parts,
                                   WidePacking wide,
                                   const float* bias = nullptr) {
    return CudaLinear::Create(parts,
                              {.name = "blk.0.test",
                               .bias = bias,
                               .wide = wide,
                               .max_rows = kMaxRows},
                              context_)
        .value();
  }

  // Activations with x's rows from kFirst on.
  std::unique_ptr<CudaActivations> Upload(
      const Inputs& x, WidePacking codes = WidePacking::kNone) {
    return LayerTest::Upload(x, kMaxRows, kFirst, codes);
  }

  // y [rows, n] in FP32, which begins as NaN or as ones.
  std::vector<float> Run(const CudaLinear& op, const CudaActivations& x,
                         int64_t rows, LinearPath path,
                         Epilogue epilogue = Epilogue::kStore) {
    std::vector<float> y(rows * op.n(),
                         epilogue == Epilogue::kAdd ? 1.0f : NAN);
    DeviceBuffer buffer = ToDevice<float>(y);
    op.Run({.x = &x,
            .row_begin = kFirst,
            .y = {buffer.data(), DType::kF32, rows, op.n(), op.n()},
            .epilogue = epilogue,
            .path = path});
    stream_->Synchronize();
    NIBBLE_CUDA_CHECK(cudaMemcpy(y.data(), buffer.data(), y.size() * 4,
                                 cudaMemcpyDeviceToHost));
    return y;
  }

  // Compares with products of codes; `offset`: what is added to column j.
  template <typename Offset>
  void Check(const std::vector<float>& y, const CodedRows& x,
             const CodedRows& w, int64_t rows, const Offset& offset) {
    const CodedMatrix x_view = x.View(), w_view = w.View();
    const auto n = static_cast<int64_t>(w.scales.size());
    // INT32 sums are exact; FP8 sums of 128 have some 14 bits and are rounded
    // four times. Then a few operations in FP32.
    const double sum_error = x.packing == WidePacking::kInt8 ? 0 : 0x1p-11;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        const CodedDot dot =
            kernels::reference::DotOfCodes(x_view, i, w_view, j);
        const double expected = dot.value + offset(j);
        ASSERT_NEAR(y[i * n + j], expected,
                    sum_error * dot.magnitude +
                        0x1p-21 * (std::fabs(dot.value) + std::fabs(offset(j))))
            << i << ", " << j << " of " << rows;
      }
    }
  }
};

TEST_F(WideLinearTest, EncodesRowsAndMultipliesCodes) {
  const CaseWeight a = Weight("int4_g128", 72), b = Weight("q4_k", 200);
  const std::vector<WeightView> parts = {a.View(), b.View()};
  const std::vector<float> bias = random_.Normals(272);
  for (const WidePacking packing : {WidePacking::kInt8, WidePacking::kE4m3}) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      context_.x_dtype = dtype;
      const auto op = Make(parts, packing, bias.data());
      ASSERT_NE(op->wide_plan(), nullptr);
      const Inputs& x = Inputs::Normal(dtype, kK);
      const auto activations = Upload(x);
      const CodedRows w = RoundWeights(packing, parts);
      for (const int64_t rows : {int64_t{1}, int64_t{33}, kMaxRows}) {
        Check(Run(*op, *activations, rows, LinearPath::kWide),
              EncodeRows(packing, x, rows), w, rows,
              [&](int64_t j) { return double{bias[j]}; });
      }
    }
  }
}

TEST_F(WideLinearTest, TakesCodesWhereXHasThem) {
  const CaseWeight weight = Weight("q4_0", 320);
  const Inputs& x = Inputs::Normal(DType::kBF16, kK);
  for (const WidePacking packing : {WidePacking::kInt8, WidePacking::kE4m3}) {
    const auto op = Make({weight.View()}, packing);
    const auto plain = Upload(x);
    const auto coded = Upload(x, packing);
    kernels::cuda::LaunchQuantize(
        {.x = coded->Row(kFirst),
         .ldx = coded->pitch(),
         .m = kMaxRows,
         .k = kK,
         .code = packing == WidePacking::kInt8
                     ? kernels::cuda::QuantizeCode::kInt8Token
                     : kernels::cuda::QuantizeCode::kFp8Token,
         .codes = coded->CodeRow(kFirst),
         .ldc = coded->code_pitch(),
         .scales = coded->Scales(kFirst)},
        context_.device, *stream_);
    // Codes only from here on.
    NIBBLE_CUDA_CHECK(cudaMemsetAsync(coded->Row(0), 0xff,
                                      coded->max_rows() * coded->pitch() * 2,
                                      stream_->get()));
    EXPECT_EQ(Run(*op, *coded, kMaxRows, LinearPath::kWide),
              Run(*op, *plain, kMaxRows, LinearPath::kWide));
  }
}

// Rows of weights as 4-bit codes have them, [rows, kK].
std::vector<float> Unpack(const std::vector<WeightView>& parts) {
  std::vector<float> rows;
  for (const WeightView& part : parts) {
    const auto packed = kernels::cuda::PackW4(std::span(&part, 1)).value();
    for (int64_t i = 0; i < part.n; ++i) {
      rows.resize(rows.size() + kK);
      UnpackW4Row(packed, i, rows.data() + rows.size() - kK);
    }
  }
  return rows;
}

class FourBitWideTest : public WideLinearTest {
 protected:
  void SetUp() override {
    WideLinearTest::SetUp();
    if (IsSkipped()) return;
    if (context_.device.compute_major != 9) GTEST_SKIP() << "Hopper only";
  }

  // Compares with products of weights and INT8 codes, whose sums are exact; a
  // minimum is two BF16 numbers.
  void CheckFourBits(const std::vector<float>& y, const CodedRows& x,
                     const std::vector<float>& w, int64_t rows,
                     const std::vector<float>& added) {
    const auto n = static_cast<int64_t>(added.size());
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0, magnitude = 0;
        for (int64_t c = 0; c < kK; ++c) {
          const double product = double{w[j * kK + c]} *
                                 static_cast<int8_t>(x.codes[i * kK + c]) *
                                 x.scales[i];
          sum += product;
          magnitude += std::fabs(product);
        }
        ASSERT_NEAR(y[i * n + j], sum + added[j], 0x1p-13 * magnitude + 1e-6)
            << i << ", " << j << " of " << rows;
      }
    }
  }
};

TEST_F(FourBitWideTest, MultipliesFourBitCodes) {
  const CaseWeight a = Weight("int4_g128", 72), b = Weight("q4_k", 200);
  const std::vector<WeightView> parts = {a.View(), b.View()};
  const std::vector<float> bias = random_.Normals(272);
  const Inputs& x = Inputs::Normal(DType::kBF16, kK);
  const auto activations = Upload(x);
  const auto op = Make(parts, WidePacking::kInt4, bias.data());
  ASSERT_NE(op->wide_plan(), nullptr);
  const std::vector<float> w = Unpack(parts);
  for (const int64_t rows : {int64_t{1}, int64_t{33}, kMaxRows}) {
    CheckFourBits(Run(*op, *activations, rows, LinearPath::kWide),
                  EncodeRows(WidePacking::kInt8, x, rows), w, rows, bias);
  }
}

TEST_F(FourBitWideTest, AddsToTheResidual) {
  const CaseWeight weight = Weight("q4_0", 328);
  const Inputs& x = Inputs::Normal(DType::kBF16, kK);
  const auto op = Make({weight.View()}, WidePacking::kInt4);
  const auto activations = Upload(x);
  CheckFourBits(Run(*op, *activations, 65, LinearPath::kWide, Epilogue::kAdd),
                EncodeRows(WidePacking::kInt8, x, 65), Unpack({weight.View()}),
                65, std::vector<float>(328, 1.0f));
}

TEST_F(FourBitWideTest, TakesCodesWhereXHasThem) {
  const CaseWeight weight = Weight("q4_k", 320);
  const Inputs& x = Inputs::Normal(DType::kBF16, kK);
  const auto op = Make({weight.View()}, WidePacking::kInt4);
  const auto plain = Upload(x);
  const auto coded = Upload(x, WidePacking::kInt4);
  kernels::cuda::LaunchQuantize(
      {.x = coded->Row(kFirst),
       .ldx = coded->pitch(),
       .m = kMaxRows,
       .k = kK,
       .code = kernels::cuda::QuantizeCode::kInt8Token,
       .codes = coded->CodeRow(kFirst),
       .ldc = coded->code_pitch(),
       .scales = coded->Scales(kFirst)},
      context_.device, *stream_);
  EXPECT_EQ(Run(*op, *coded, kMaxRows, LinearPath::kWide),
            Run(*op, *plain, kMaxRows, LinearPath::kWide));
  // Others may read the codes after this layer.
  EXPECT_EQ(Run(*op, *coded, 65, LinearPath::kWide),
            Run(*op, *plain, 65, LinearPath::kWide));
}

// The 4-bit packing takes about as much again as the narrow one.
TEST_F(FourBitWideTest, TakesFourBitsAWeight) {
  const CaseWeight weight = Weight("int4_g128", 1024);
  const auto both = Make({weight.View()}, WidePacking::kInt4);
  const auto narrow = Make({weight.View()}, WidePacking::kNone);
  EXPECT_LT(both->packed_bytes(), narrow->packed_bytes() + 1024 * kK * 3 / 4);
}

TEST_F(WideLinearTest, AddsToTheResidual) {
  const CaseWeight weight = Weight("int4_g128", 328);
  const Inputs& x = Inputs::Normal(DType::kBF16, kK);
  const auto op = Make({weight.View()}, WidePacking::kInt8);
  const auto activations = Upload(x);
  Check(Run(*op, *activations, 65, LinearPath::kWide, Epilogue::kAdd),
        EncodeRows(WidePacking::kInt8, x, 65),
        RoundWeights(WidePacking::kInt8, {weight.View()}), 65,
        [](int64_t) { return 1.0; });
}

TEST_F(WideLinearTest, ARowIsTheSameAloneAndAmongOthers) {
  const CaseWeight weight = Weight("int4_g128", 576);
  const Inputs& x = Inputs::Normal(DType::kBF16, kK);
  for (const WidePacking packing : {WidePacking::kInt8, WidePacking::kE4m3}) {
    const auto op = Make({weight.View()}, packing);
    const auto activations = Upload(x);
    const auto all = Run(*op, *activations, kMaxRows, LinearPath::kWide);
    for (const int64_t rows : {1, 4, 16, 64, 129}) {
      const auto some = Run(*op, *activations, rows, LinearPath::kWide);
      EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << rows;
    }
  }
}

TEST_F(WideLinearTest, LeavesTheNarrowPathAlone) {
  const CaseWeight weight = Weight("q4_k", 256);
  const auto both = Make({weight.View()}, WidePacking::kInt8);
  const auto narrow = Make({weight.View()}, WidePacking::kNone);
  EXPECT_EQ(narrow->wide_plan(), nullptr);
  EXPECT_GT(both->packed_bytes(), narrow->packed_bytes() + 256 * kK);
  const auto activations = Upload(Inputs::Normal(DType::kBF16, kK));
  const auto expected = Run(*narrow, *activations, 33, LinearPath::kNarrow);
  EXPECT_EQ(Run(*both, *activations, 33, LinearPath::kNarrow), expected);
  // Without a wide packing its path is the narrow one.
  EXPECT_EQ(Run(*narrow, *activations, 33, LinearPath::kWide), expected);
}

// Planned as for another device: any has code for what that one would run.
TEST_F(WideLinearTest, RunsOnDevicesOtherThanHopper) {
  context_.device.compute_major = 8;
  context_.device.compute_minor = 9;
  const CaseWeight weight = Weight("int4_g128", 200);
  const Inputs& x = Inputs::Normal(DType::kBF16, kK);
  const auto activations = Upload(x);
  for (const WidePacking packing : {WidePacking::kInt8, WidePacking::kE4m3}) {
    const auto op = Make({weight.View()}, packing);
    for (const int64_t rows : {int64_t{1}, int64_t{33}, kMaxRows}) {
      EXPECT_EQ(op->wide_plan()->ForRows(rows).variant, "mma");
      Check(Run(*op, *activations, rows, LinearPath::kWide),
            EncodeRows(packing, x, rows),
            RoundWeights(packing, {weight.View()}), rows,
            [](int64_t) { return 0.0; });
    }
  }
}

TEST_F(WideLinearTest, SaysWhatDeviceFp8Needs) {
  context_.device.compute_major = 8;
  context_.device.compute_minor = 6;
  const CaseWeight weight = Weight("q4_0", 64);
  const auto op = CudaLinear::Create(
      {{weight.View()}},
      {.name = "blk.0.test", .wide = WidePacking::kE4m3, .max_rows = kMaxRows},
      context_);
  EXPECT_EQ(op.status().code(), absl::StatusCode::kUnimplemented);
  for (const char* part : {"blk.0.test", "e4m3", "8.9", "compute 8.6"}) {
    EXPECT_NE(op.status().message().find(part), std::string_view::npos)
        << op.status();
  }
}

TEST_F(WideLinearTest, RefusesWhatItHasNoKernelFor) {
  const auto why = [&](const std::vector<WeightView>& parts, bool silu_mul,
                       absl::StatusCode code) {
    const auto op = CudaLinear::Create(parts,
                                       {.name = "blk.0.test",
                                        .silu_mul = silu_mul,
                                        .wide = WidePacking::kInt8,
                                        .max_rows = kMaxRows},
                                       context_);
    EXPECT_EQ(op.status().code(), code);
    return std::string(op.status().message());
  };
  const CaseWeight gate = Weight("q4_0", 64), up = Weight("q4_0", 64);
  EXPECT_NE(
      why({gate.View(), up.View()}, true, absl::StatusCode::kUnimplemented)
          .find("silu_mul"),
      std::string::npos);
  const CaseWeight odd = Weight("int4_pc", 64, 3420);
  EXPECT_NE(
      why({odd.View()}, false, absl::StatusCode::kInvalidArgument).find("3420"),
      std::string::npos);
}

}  // namespace
}  // namespace nibble::test
