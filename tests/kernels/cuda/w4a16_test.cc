// Every kind of weights in odd shapes, any number of rows, every way to launch:
// right to FP64, the same bits whatever the launch and M, nothing written
// outside of y; and every epilogue and type of y.
#include "kernels/cuda/linear/w4a16.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tests/kernels/cuda/w4_cases.h"
#include "tests/kernels/cuda/w4_harness.h"
#include "tests/kernels/cuda/w4_reference.h"
#include "tests/support/random.h"

namespace nibble::test {
namespace {

using kernels::DType;
using kernels::LaunchSpec;
using kernels::WeightView;
using kernels::cuda::W4Epilogue;

constexpr std::array<int64_t, 6> kN = {64, 72, 320, 576, 1440, 2112};
constexpr std::array<int64_t, 7> kK = {96, 576, 1536, 2880, 3420, 8960, 10944};
constexpr std::array<DType, 3> kYTypes = {DType::kF32, DType::kBF16,
                                          DType::kF16};

std::string Describe(const std::string& name, const Job& job,
                     const LaunchSpec& spec) {
  return name + " " + std::to_string(job.w.n) + "x" + std::to_string(job.w.k) +
         " m=" + std::to_string(job.m) +
         " x=" + std::to_string(static_cast<int>(job.x_dtype)) +
         " y=" + std::to_string(static_cast<int>(job.y_dtype)) + " " +
         spec.ToString();
}

// The specs for a job, each feasible, listed once, and printable.
std::vector<LaunchSpec> CheckedCandidates(const Job& job) {
  const Runner& runner = Runner::Get();
  std::vector<LaunchSpec> specs = runner.Candidates(job);
  EXPECT_FALSE(specs.empty());
  std::set<std::string> texts;
  for (const LaunchSpec& spec : specs) {
    EXPECT_TRUE(kernels::cuda::W4Feasible(job.w, job.m, job.epilogue, spec,
                                          runner.device()))
        << spec.ToString();
    EXPECT_TRUE(texts.insert(spec.ToString()).second) << spec.ToString();
    const auto parsed = LaunchSpec::Parse(spec.ToString());
    EXPECT_TRUE(parsed.ok() && *parsed == spec) << spec.ToString();
  }
  return specs;
}

class W4Sweep : public GpuTest,
                public ::testing::WithParamInterface<std::string> {
 protected:
  // One shape; false after a failure.
  bool RunShape(const WeightCase& weight_case, int64_t n, int64_t k, int index);
  // All numbers of rows against the bits of 257.
  bool RunAllRows(Job job, const std::string& name,
                  const std::vector<std::byte>& expected);
};

bool W4Sweep::RunShape(const WeightCase& weight_case, int64_t n, int64_t k,
                       int index) {
  Random random(static_cast<uint64_t>(n * 100'000 + k));
  const CaseWeight weight(weight_case, n, k, random);
  const WeightView view = weight.View();
  const auto device = DeviceWeight::Make({&view, 1});
  if (const std::string why = WhyRefused(weight_case, n, k); !why.empty()) {
    EXPECT_FALSE(device.ok());
    EXPECT_NE(std::string(device.status().message()).find(why),
              std::string::npos)
        << device.status();
    return true;
  }
  EXPECT_TRUE(device.ok()) << device.status();
  if (!device.ok()) return false;
  // Every pair of types comes up in some shapes.
  const DType x_dtype = index % 2 == 0 ? DType::kBF16 : DType::kF16;
  std::optional<Inputs> reordered;
  if (!device->packed.x_perm.empty()) {
    reordered.emplace(x_dtype, kNormalRows, NormalValues(k),
                      device->packed.x_perm);
  }
  const Inputs& x =
      reordered.has_value() ? *reordered : Inputs::Normal(x_dtype, k);
  const Reference reference = Reference::Make(x, view, SampleColumns(n));
  Job job = Job::Of(*device, x, kNormalRows);
  job.y_dtype = kYTypes[index % 3];
  const LaunchSpec first = Runner::Get().Candidates(job).front();
  const Result result = Runner::Get().Run(job, first);
  const std::string wrong = Compare(result, reference, kNormalRows);
  EXPECT_EQ(wrong, "") << Describe(weight_case.name, job, first);
  if (!wrong.empty()) return false;
  return RunAllRows(job, weight_case.name, Copy(result, kNormalRows, n));
}

bool W4Sweep::RunAllRows(Job job, const std::string& name,
                         const std::vector<std::byte>& expected) {
  for (const int64_t m : AllRows()) {
    job.m = m;
    job.aligned = m % 2 == 0;
    for (const LaunchSpec& spec : CheckedCandidates(job)) {
      const Result result = Runner::Get().Run(job, spec);
      const std::string wrong = CompareBits(result, expected, m, job.n_out);
      EXPECT_EQ(wrong, "") << Describe(name, job, spec);
      if (!wrong.empty()) return false;
    }
  }
  return true;
}

TEST_P(W4Sweep, IsRightAndTheSameBitsInAnyShapeForAnyRows) {
  const WeightCase& weight_case = WeightCaseByName(GetParam());
  int failures = 0;
  int index = 0;
  for (const int64_t n : kN) {
    for (const int64_t k : kK) {
      if (!RunShape(weight_case, n, k, index++) && ++failures == 5) return;
    }
  }
}

std::vector<std::string> CaseNames() {
  std::vector<std::string> names;
  for (const WeightCase& weight_case : WeightCases()) {
    names.push_back(weight_case.name);
  }
  return names;
}

std::string ParamName(const ::testing::TestParamInfo<std::string>& info) {
  return info.param;
}

INSTANTIATE_TEST_SUITE_P(Weights, W4Sweep, ::testing::ValuesIn(CaseNames()),
                         ParamName);

class W4Epilogues : public GpuTest,
                    public ::testing::WithParamInterface<std::string> {
 protected:
  // f(job, name) for every pair of types of x and y; jobs of 64 + 8 rows of W,
  // so that the last tile is half full.
  template <typename F>
  void ForAllTypes(const F& f) {
    for (const DType x_dtype : {DType::kBF16, DType::kF16}) {
      for (const DType y_dtype : kYTypes) f(x_dtype, y_dtype);
    }
  }
};

constexpr int64_t kSmallN = 72;
constexpr int64_t kSmallK = 768;  // three blocks; a multiple of every group
constexpr std::array<int64_t, 6> kSomeRows = {1, 7, 8, 17, 64, 129};

TEST_P(W4Epilogues, AddBiasAndWhatWasThere) {
  Random random(1);
  const CaseWeight weight(WeightCaseByName(GetParam()), kSmallN, kSmallK,
                          random);
  const WeightView view = weight.View();
  const DeviceWeight device = DeviceWeight::Make({&view, 1}).value();
  const std::vector<float> bias = random.Normals(kSmallN, 10);
  const auto device_bias = ToDevice<float>(bias);
  const std::vector<float> before = random.Normals(kNormalRows * kSmallN, 10);
  ForAllTypes([&](DType x_dtype, DType y_dtype) {
    const Inputs x(x_dtype, kNormalRows, NormalValues(kSmallK),
                   device.packed.x_perm);
    const Reference plain = Reference::Make(x, view, SampleColumns(kSmallN));
    const std::vector<std::byte> old = Encode(y_dtype, before);
    const int64_t size = kernels::ElementBytes(y_dtype);
    for (const bool with_bias : {false, true}) {
      for (const bool add : {false, true}) {
        if (!with_bias && !add) continue;
        Reference reference = plain;
        for (size_t c = 0; c < reference.columns.size(); ++c) {
          for (int64_t i = 0; i < kNormalRows; ++i) {
            const int64_t column = reference.columns[c];
            double& value = reference.value[c * kNormalRows + i];
            if (with_bias) value += bias[column];
            if (add) {
              value +=
                  Decode(y_dtype, old.data() + (i * kSmallN + column) * size);
            }
          }
        }
        for (const int64_t m : kSomeRows) {
          Job job = Job::Of(device, x, m);
          job.y_dtype = y_dtype;
          job.aligned = m % 2 == 0;
          if (with_bias) job.bias = device_bias.as<const float>();
          if (add) {
            job.epilogue = W4Epilogue::kAdd;
            job.before = old.data();
          }
          for (const LaunchSpec& spec : CheckedCandidates(job)) {
            const Result result = Runner::Get().Run(job, spec);
            ASSERT_EQ(Compare(result, reference, m), "")
                << Describe(GetParam(), job, spec) << (add ? " add" : " bias");
          }
        }
      }
    }
  });
}

// silu(gate) * up and its error, from those of gate and up.
void FuseSilu(const Reference& up, Reference* gate) {
  for (size_t i = 0; i < gate->value.size(); ++i) {
    const double g = gate->value[i];
    const double sigmoid = 1 / (1 + std::exp(-g));
    const double silu = g * sigmoid;
    // |silu'| <= 1.1; the division and expf round by some units of 2^-23.
    gate->error[i] = 1.1 * gate->error[i] * std::fabs(up.value[i]) +
                     up.error[i] * std::fabs(silu) +
                     0x1p-22 * std::fabs(silu * up.value[i]);
    gate->value[i] = silu * up.value[i];
  }
}

TEST_P(W4Epilogues, MultiplySiluOfGateByUp) {
  for (const int64_t f : {int64_t{8}, int64_t{16}, kSmallN, int64_t{320}}) {
    Random random(static_cast<uint64_t>(f));
    const WeightCase& weight_case = WeightCaseByName(GetParam());
    CaseWeight gate(weight_case, f, kSmallK, random);
    CaseWeight up(weight_case, f, kSmallK, random);
    if (weight_case.act_order) up.groups().g_idx = gate.groups().g_idx;
    if (gate.blocks().empty()) {
      up.groups().tensor_scale = gate.groups().tensor_scale;
    }
    const std::vector<WeightView> parts = {gate.View(), up.View()};
    const auto device = DeviceWeight::Make(parts, {.interleave_gate_up = true});
    ASSERT_TRUE(device.ok()) << device.status();
    ForAllTypes([&](DType x_dtype, DType y_dtype) {
      std::vector<float> values = NormalValues(kSmallK);
      // Of Q4_K's great weights products of two would leave FP16.
      for (float& value : values) value *= 1.0f / 16;
      const Inputs x(x_dtype, kNormalRows, values, device->packed.x_perm);
      Reference reference = Reference::Make(x, parts[0], SampleColumns(f));
      FuseSilu(Reference::Make(x, parts[1], SampleColumns(f)), &reference);
      for (const int64_t m : kSomeRows) {
        Job job = Job::Of(*device, x, m);
        job.n_out = f;
        job.y_dtype = y_dtype;
        job.aligned = m % 2 == 0;
        job.epilogue = W4Epilogue::kSiluMul;
        for (const LaunchSpec& spec : CheckedCandidates(job)) {
          const Result result = Runner::Get().Run(job, spec);
          ASSERT_EQ(Compare(result, reference, m), "")
              << Describe(GetParam(), job, spec);
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, W4Epilogues,
                         ::testing::Values("int4_g128", "int4s_g32",
                                           "gptq_order_g128", "q4_k", "mxfp4",
                                           "nvfp4"),
                         ParamName);

class W4Kernels : public GpuTest {};

TEST_F(W4Kernels, NoRowsAreANoOp) {
  Random random(1);
  const CaseWeight weight(WeightCaseByName("q4_0"), 64, 256, random);
  const WeightView view = weight.View();
  const DeviceWeight device = DeviceWeight::Make({&view, 1}).value();
  const Inputs& x = Inputs::Normal(DType::kBF16, 256);
  Job job = Job::Of(device, x, 1);
  const std::vector<LaunchSpec> specs = Runner::Get().Candidates(job);
  job.m = 0;
  for (const LaunchSpec& spec : specs) {
    EXPECT_EQ(Runner::Get().Run(job, spec).problem, "") << spec.ToString();
  }
}

TEST_F(W4Kernels, RowsMayBeginAnywhere) {
  Random random(1);
  const CaseWeight weight(WeightCaseByName("int4_g128"), 320, 1536, random);
  const WeightView view = weight.View();
  const DeviceWeight device = DeviceWeight::Make({&view, 1}).value();
  const Inputs& x = Inputs::Normal(DType::kBF16, 1536);
  const Reference reference = Reference::Make(x, view, SampleColumns(320));
  for (const int64_t first : {1, 3, 100}) {
    for (const int64_t m : kSomeRows) {
      Job job = Job::Of(device, x, m);
      job.x = x.device(first);
      for (const LaunchSpec& spec : CheckedCandidates(job)) {
        const Result result = Runner::Get().Run(job, spec);
        ASSERT_EQ(Compare(result, reference, m, first), "")
            << Describe("int4_g128", job, spec) << " from row " << first;
      }
    }
  }
}

}  // namespace
}  // namespace nibble::test
