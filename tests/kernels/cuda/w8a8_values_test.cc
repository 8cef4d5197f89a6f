// What W8A8 kernels do with scales, zero points, bias, residual and types of y,
// with NaN and with extreme numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/linear/w8a8.h"
#include "tests/kernels/cuda/w4_harness.h"
#include "tests/kernels/cuda/w4_reference.h"
#include "tests/kernels/cuda/w8a8_harness.h"
#include "tests/support/random.h"

namespace nibble::test {
namespace {

using kernels::DType;
using kernels::LaunchSpec;
using kernels::cuda::DeviceBuffer;
using kernels::cuda::W8Args;
using kernels::cuda::W8Kind;
using kernels::cuda::W8Problem;
using kernels::cuda::W8Scaling;
using kernels::reference::CodedDot;

constexpr int64_t kM = 130;
constexpr int64_t kN = 296;  // with a tile that ends early in each width
constexpr int64_t kK = 528;
constexpr DType kYTypes[] = {DType::kBF16, DType::kF16, DType::kF32};

// What rounding to a type may change.
double RoundingError(DType dtype, double value) {
  switch (dtype) {
    case DType::kBF16:
      return std::fabs(value) * 0x1p-8 + 0x1p-133;
    case DType::kF16:
      return std::fabs(value) * 0x1p-11 + 0x1p-25;
    default:
      return std::fabs(value) * 0x1p-23 + 0x1p-149;
  }
}

class W8Values : public W8KindTest {
 protected:
  W8Problem Problem() const { return {GetParam(), kM, kN, kK}; }
  bool IsInt8() const { return kernels::cuda::IsInt8(GetParam()); }
  std::vector<W8Scaling> Scalings() const {
    if (GetParam() == W8Kind::kE4m3Block) return {W8Scaling::kBlock};
    return {W8Scaling::kRow, W8Scaling::kTensor};
  }
};

// What is added to products. By value.
struct Added {
  std::vector<float> bias;      // [n] or empty
  std::vector<float> residual;  // [m, n] or empty
};

// "" or where y [m, kN] of `dtype` is off.
std::string Compare(const W8Output& output, DType dtype, int64_t m,
                    const W8Reference& reference, W8Kind kind,
                    const Added& added) {
  if (!output.problem.empty()) return output.problem;
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t column = 0; column < kN; ++column) {
      const CodedDot& dot = reference.At(row, column);
      const int64_t at = row * kN + column;
      const double bias = added.bias.empty() ? 0 : added.bias[column];
      const double residual = added.residual.empty() ? 0 : added.residual[at];
      const double expected = dot.value + bias + residual;
      const double got =
          Decode(dtype, output.y.data() + at * kernels::ElementBytes(dtype));
      const double allowed =
          W8SumError(kind, dot) + RoundingError(dtype, expected) +
          0x1p-22 *
              (std::fabs(dot.value) + std::fabs(bias) + std::fabs(residual));
      if (!(std::fabs(got - expected) <= allowed)) {
        return "y[" + std::to_string(row) + ", " + std::to_string(column) +
               "] is " + std::to_string(got) + ", not " +
               std::to_string(expected);
      }
    }
  }
  return "";
}

TEST_P(W8Values, ScalesBiasResidualAndTypesOfY) {
  for (const W8Scaling scaling : Scalings()) {
    // Products of FP16's range.
    const float scale = IsInt8() ? 1.0f / 64 : 1.0f / 256;
    const W8Operands operands({.problem = Problem(),
                               .scaling = scaling,
                               .least_scale = scale / 4,
                               .greatest_scale = scale});
    const W8Reference reference = W8Reference::Make(operands);
    Random random(3);
    const std::vector<float> bias = random.Normals(kN, 100);
    const DeviceBuffer device_bias = ToDevice<float>(bias);
    for (const DType dtype : kYTypes) {
      // Numbers of the type itself.
      const std::vector<std::byte> before =
          Encode(dtype, random.Normals(kM * kN, 100));
      std::vector<float> residual(kM * kN);
      for (int64_t i = 0; i < kM * kN; ++i) {
        residual[i] = static_cast<float>(
            Decode(dtype, before.data() + i * kernels::ElementBytes(dtype)));
      }
      const DeviceBuffer device_residual = ToDevice<std::byte>(before);
      for (const LaunchSpec& spec : W8Runner::Get().Specs(Problem())) {
        for (const bool aligned : {true, false}) {
          for (const int64_t m : {int64_t{1}, int64_t{63}, kM}) {
            W8Job job{.args = operands.Args(m), .aligned = aligned};
            job.args.y_dtype = dtype;
            const auto check = [&](const Added& added, const char* what) {
              const W8Output output = W8Runner::Get().Run(job, spec);
              ASSERT_EQ(Compare(output, dtype, m, reference, GetParam(), added),
                        "")
                  << spec.ToString() << " m=" << m << " aligned=" << aligned
                  << " y=" << static_cast<int>(dtype) << " " << what;
            };
            check({}, "plain");
            job.args.bias = device_bias.as<float>();
            check({.bias = bias, .residual = {}}, "bias");
            job.added_to = before.data();
            check({.bias = bias, .residual = residual}, "added to y");
            job.added_to = nullptr;
            job.args.residual = device_residual.data();
            job.args.ld_residual = kN;
            check({.bias = bias, .residual = residual}, "residual");
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

// With scales of one all is in integers.
TEST_P(W8Values, ZeroPointsAreExact) {
  if (!IsInt8()) GTEST_SKIP() << "INT8 only";
  const W8Operands operands({.problem = Problem(), .zeros = true});
  const W8Reference reference = W8Reference::Make(operands);
  for (const LaunchSpec& spec : W8Runner::Get().Specs(Problem())) {
    const W8Output output =
        W8Runner::Get().Run({.args = operands.Args(kM)}, spec);
    for (size_t i = 0; i < reference.dots.size(); ++i) {
      ASSERT_EQ(Decode(DType::kF32, output.y.data() + i * 4),
                static_cast<float>(reference.dots[i].value))
          << spec.ToString() << " at " << i;
    }
  }
}

// Zero points, scales and bias together.
TEST_P(W8Values, ZeroPointsGoWithScales) {
  if (!IsInt8()) GTEST_SKIP() << "INT8 only";
  for (const W8Scaling scaling : Scalings()) {
    const W8Operands operands({.problem = Problem(),
                               .scaling = scaling,
                               .least_scale = 0.01f,
                               .greatest_scale = 10,
                               .zeros = true});
    const W8Reference reference = W8Reference::Make(operands);
    const std::vector<float> bias = Random(5).Normals(kN, 1'000);
    const DeviceBuffer device_bias = ToDevice<float>(bias);
    for (const LaunchSpec& spec : W8Runner::Get().Specs(Problem())) {
      W8Job job{.args = operands.Args(kM)};
      job.args.bias = device_bias.as<float>();
      const W8Output output = W8Runner::Get().Run(job, spec);
      ASSERT_EQ(Compare(output, DType::kF32, kM, reference, GetParam(),
                        {.bias = bias, .residual = {}}),
                "")
          << spec.ToString();
    }
  }
}

// The greatest sums that INT32 holds, and with zero points those that it holds
// only modulo 2^32 on the way.
TEST_P(W8Values, GreatestSumsOfIntegersAreExact) {
  if (GetParam() != W8Kind::kInt8) GTEST_SKIP() << "INT8 only";
  for (const bool zeros : {false, true}) {
    const int64_t k =
        zeros ? kernels::cuda::kW8MaxZerosK : kernels::cuda::kW8MaxInt8K;
    const W8Problem problem{GetParam(), 2, 2, k};
    W8Operands operands({.problem = problem, .zeros = zeros, .fill = 0x80});
    const W8Reference reference = W8Reference::Make(operands);
    for (const LaunchSpec& spec : W8Runner::Get().Specs(problem)) {
      const W8Output output =
          W8Runner::Get().Run({.args = operands.Args(2)}, spec);
      for (size_t i = 0; i < reference.dots.size(); ++i) {
        ASSERT_EQ(Decode(DType::kF32, output.y.data() + i * 4),
                  static_cast<float>(reference.dots[i].value))
            << spec.ToString() << " zeros=" << zeros << " at " << i;
      }
    }
  }
}

TEST_P(W8Values, ExtremeScales) {
  struct Range {
    float least, greatest;
  };
  for (const Range& range :
       {Range{1e-15f, 1e-14f}, Range{1e14f, 1e15f}, Range{1e-14f, 1e14f}}) {
    const W8Operands operands({.problem = Problem(),
                               .least_scale = range.least,
                               .greatest_scale = range.greatest});
    const W8Reference reference = W8Reference::Make(operands);
    for (const LaunchSpec& spec : W8Runner::Get().Specs(Problem())) {
      const W8Output output =
          W8Runner::Get().Run({.args = operands.Args(kM)}, spec);
      ASSERT_EQ(Compare(output, DType::kF32, kM, reference, GetParam(), {}), "")
          << spec.ToString() << " " << range.least;
    }
  }
}

// A code that is NaN spoils its row, or its column, and no more.
TEST_P(W8Values, NanStaysWhereItIs) {
  if (IsInt8()) GTEST_SKIP() << "E4M3 only";
  constexpr int64_t kRow = 65, kColumn = 130;
  W8Operands operands({.problem = Problem()});
  operands.SetX(kRow, 77, 0x7f);
  operands.SetW(kColumn, 400, 0xff);
  for (const LaunchSpec& spec : W8Runner::Get().Specs(Problem())) {
    const W8Output output =
        W8Runner::Get().Run({.args = operands.Args(kM)}, spec);
    for (int64_t row = 0; row < kM; ++row) {
      for (int64_t column = 0; column < kN; ++column) {
        const double y =
            Decode(DType::kF32, output.y.data() + (row * kN + column) * 4);
        ASSERT_EQ(std::isnan(y), row == kRow || column == kColumn)
            << spec.ToString() << " " << row << " " << column;
      }
    }
  }
}

// A kernel that starts early must wait for what it adds to.
TEST_P(W8Values, OverlapsTheKernelAhead) {
  const W8Operands operands({.problem = Problem()});
  const W8Runner& runner = W8Runner::Get();
  const DeviceBuffer y = DeviceBuffer::Make(kM * kN * 4).value();
  const auto run = [&](const LaunchSpec& spec, bool overlap) {
    W8Args args = operands.Args(kM);
    args.y = y.data();
    args.ldy = kN;
    kernels::cuda::LaunchW8(args, spec, runner.device(), runner.stream().get());
    args.residual = y.data();
    args.ld_residual = kN;
    for (int i = 0; i < 10; ++i) {
      kernels::cuda::LaunchW8(args, spec, runner.device(),
                              runner.stream().get(), {.overlap = overlap});
    }
    runner.stream().Synchronize();
    std::vector<float> host(kM * kN);
    NIBBLE_CUDA_CHECK(cudaMemcpy(host.data(), y.data(), host.size() * 4,
                                 cudaMemcpyDeviceToHost));
    return host;
  };
  for (const LaunchSpec& spec : runner.Specs(Problem())) {
    EXPECT_EQ(run(spec, true), run(spec, false)) << spec.ToString();
  }
}

std::string KindName(const ::testing::TestParamInfo<W8Kind>& info) {
  return std::string(kernels::cuda::W8KindName(info.param));
}
INSTANTIATE_TEST_SUITE_P(Kinds, W8Values,
                         ::testing::ValuesIn(kernels::cuda::kW8Kinds),
                         KindName);

}  // namespace
}  // namespace nibble::test
