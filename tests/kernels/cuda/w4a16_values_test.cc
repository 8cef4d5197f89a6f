// W4A16 with numbers at the edges of their formats.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/linear/w4a16.h"
#include "tests/kernels/cuda/w4_cases.h"
#include "tests/kernels/cuda/w4_harness.h"
#include "tests/kernels/cuda/w4_reference.h"
#include "tests/support/random.h"

namespace nibble::test {
namespace {

using kernels::DType;
using kernels::LaunchSpec;
using kernels::QuantFormat;
using kernels::WeightView;

constexpr int64_t kN = 72;   // the last tile is half full
constexpr int64_t kK = 768;  // three blocks; a multiple of every group
constexpr std::array<int64_t, 5> kRows = {1, 8, 17, 64, 129};
constexpr std::array<DType, 2> kXTypes = {DType::kBF16, DType::kF16};
constexpr std::array<DType, 3> kYTypes = {DType::kF32, DType::kBF16,
                                          DType::kF16};

class W4Values : public GpuTest {
 protected:
  CaseWeight MakeWeight(const std::string& name) {
    return {WeightCaseByName(name), kN, kK, random_};
  }

  // Runs every spec for some numbers of rows and compares with FP64 in
  // `columns`.
  static void CheckAll(const WeightView& view, const Inputs& x,
                       const std::vector<int64_t>& columns,
                       const std::string& what) {
    const DeviceWeight device = DeviceWeight::Make({&view, 1}).value();
    const Reference reference = Reference::Make(x, view, columns);
    for (const int64_t m : kRows) {
      const Job job = Job::Of(device, x, m);
      for (const LaunchSpec& spec : Runner::Get().Candidates(job)) {
        const Result result = Runner::Get().Run(job, spec);
        ASSERT_EQ(Compare(result, reference, m), "")
            << what << " m=" << m << " " << spec.ToString();
      }
    }
  }

  Random random_{1};
};

TEST_F(W4Values, OutlierChannelsNearTheLimit) {
  for (const DType dtype : kXTypes) {
    // FP16's greatest number; far beyond it in BF16.
    const float limit = dtype == DType::kF16 ? 65504.0f : 0x1p60f;
    std::vector<float> values = random_.Normals(kNormalRows * kK);
    for (int64_t i = 0; i < kNormalRows; ++i) {
      for (const int64_t channel : {5, 133, 400, 767}) {
        values[i * kK + channel] =
            limit * (random_.Int(0, 1) == 0 ? 1.0f : -0.875f);
      }
    }
    const Inputs x(dtype, kNormalRows, values);
    for (const char* name :
         {"int4_g128", "int4s_g32", "awq_g64", "q4_0", "q4_1", "q4_k", "mxfp4",
          "nvfp4", "int4_g128_bf16"}) {
      CheckAll(MakeWeight(name).View(), x, SampleColumns(kN), name);
    }
  }
}

TEST_F(W4Values, SmallNumbersKeepTheirBits) {
  for (const DType dtype : kXTypes) {
    // Subnormal in FP16; far below that in BF16.
    const float size = dtype == DType::kF16 ? 0x1p-18f : 0x1p-60f;
    const Inputs x(dtype, kNormalRows, random_.Normals(kNormalRows * kK, size));
    for (const char* name : {"int4_g128", "q4_0", "q4_k", "mxfp4", "nvfp4"}) {
      CheckAll(MakeWeight(name).View(), x, SampleColumns(kN), name);
    }
  }
}

TEST_F(W4Values, LeastAndGreatestZeroPoints) {
  for (const DType dtype : kXTypes) {
    const Inputs& x = Inputs::Normal(dtype, kK);
    for (const char* name : {"awq_g128", "gptq_g128", "gptq_v2_g64"}) {
      for (const int byte : {0x00, 0xff, 0xf0}) {
        CaseWeight weight = MakeWeight(name);
        std::vector<std::byte>& zeros = weight.groups().zeros_or_mins;
        std::fill(zeros.begin(), zeros.end(), static_cast<std::byte>(byte));
        CheckAll(weight.View(), x, SampleColumns(kN), name);
      }
    }
  }
}

TEST_F(W4Values, LeastAndGreatestE8m0Scales) {
  CaseWeight weight = MakeWeight("mxfp4");
  const int64_t groups = kK / 32;
  const auto set = [&](int64_t row, int64_t begin, int64_t end, int scale) {
    for (int64_t g = begin; g < end; ++g) {
      weight.groups().scales[row * groups + g] = static_cast<std::byte>(scale);
    }
  };
  for (int64_t row = 0; row < 20; ++row) set(row, 0, groups, 0);
  set(20, 3, 4, 0);
  set(21, 0, groups, kernels::cuda::kMaxE8m0);
  set(30, 0, 1, 255);
  set(47, groups - 1, groups, 255);
  set(71, 0, groups, 255);
  const std::vector<int64_t> nans = {30, 47, 71};
  std::vector<int64_t> others;
  for (int64_t row = 0; row < kN; ++row) {
    if (std::find(nans.begin(), nans.end(), row) == nans.end()) {
      others.push_back(row);
    }
  }
  const WeightView view = weight.View();
  for (const DType dtype : kXTypes) {
    const Inputs& x = Inputs::Normal(dtype, kK);
    CheckAll(view, x, others, "mxfp4");
    const DeviceWeight device = DeviceWeight::Make({&view, 1}).value();
    for (const int64_t m : kRows) {
      const Job job = Job::Of(device, x, m);
      for (const LaunchSpec& spec : Runner::Get().Candidates(job)) {
        const Result result = Runner::Get().Run(job, spec);
        for (int64_t i = 0; i < m; ++i) {
          for (const int64_t column : nans) {
            ASSERT_TRUE(std::isnan(result.At(i, column)))
                << "y[" << i << ", " << column << "] " << spec.ToString();
          }
        }
      }
    }
  }
}

TEST_F(W4Values, SubnormalE4m3Scales) {
  CaseWeight weight = MakeWeight("nvfp4");
  for (std::byte& scale : weight.groups().scales) {
    scale = static_cast<std::byte>(random_.Int(0, 7) | random_.Int(0, 1) << 7);
  }
  for (const DType dtype : kXTypes) {
    CheckAll(weight.View(), Inputs::Normal(dtype, kK), SampleColumns(kN),
             "nvfp4");
  }
}

TEST_F(W4Values, ZeroScalesGiveZeros) {
  for (const char* name : {"int4_g128", "int4s_g32", "awq_g64", "gptq_g256",
                           "q4_0", "q4_1", "q4_k", "nvfp4"}) {
    CaseWeight weight = MakeWeight(name);
    if (weight.blocks().empty()) {
      GroupWeight& groups = weight.groups();
      std::fill(groups.scales.begin(), groups.scales.end(), std::byte{0});
      if (groups.spec.format == QuantFormat::kInt4) {
        std::fill(groups.zeros_or_mins.begin(), groups.zeros_or_mins.end(),
                  std::byte{0});
      }
    } else {
      // Of every block the first four bytes: d and dmin, or d and two codes.
      const int bytes = kernels::Info(weight.View().format).block_bytes;
      for (size_t at = 0; at < weight.blocks().size(); at += bytes) {
        std::fill_n(weight.blocks().begin() + static_cast<int64_t>(at), 4,
                    std::byte{0});
      }
    }
    const WeightView view = weight.View();
    const DeviceWeight device = DeviceWeight::Make({&view, 1}).value();
    const std::vector<float> bias = random_.Normals(kN);
    const auto device_bias = ToDevice<float>(bias);
    for (const DType dtype : kXTypes) {
      for (const int64_t m : kRows) {
        Job job = Job::Of(device, Inputs::Normal(dtype, kK), m);
        job.bias = device_bias.as<const float>();
        for (const LaunchSpec& spec : Runner::Get().Candidates(job)) {
          const Result result = Runner::Get().Run(job, spec);
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t j = 0; j < kN; ++j) {
              ASSERT_EQ(result.At(i, j), bias[j])
                  << name << " y[" << i << ", " << j << "] " << spec.ToString();
            }
          }
        }
      }
    }
  }
}

TEST_F(W4Values, NanAndInfinityStayInTheirRow) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const char* name : {"int4_g128", "int4s_g32", "awq_g64", "q4_0", "q4_k",
                           "mxfp4", "nvfp4"}) {
    const CaseWeight weight = MakeWeight(name);
    const WeightView view = weight.View();
    const DeviceWeight device = DeviceWeight::Make({&view, 1}).value();
    for (const DType dtype : kXTypes) {
      const Inputs& clean = Inputs::Normal(dtype, kK);
      for (const int64_t m : kRows) {
        // A row of each part of a tile of x, the last among them.
        const std::vector<int64_t> bad_rows = {m / 3, m - 1};
        std::vector<float> values = NormalValues(kK);
        values[bad_rows[0] * kK + random_.Int(0, kK - 1)] =
            random_.Int(0, 1) == 0 ? inf : -inf;
        values[bad_rows[1] * kK + kK - 1] = nan;
        const Inputs spoilt(dtype, kNormalRows, values);
        for (const DType y_dtype : kYTypes) {
          Job job = Job::Of(device, clean, m);
          job.y_dtype = y_dtype;
          for (const LaunchSpec& spec : Runner::Get().Candidates(job)) {
            job.x = clean.device();
            const std::vector<std::byte> expected =
                Copy(Runner::Get().Run(job, spec), m, kN);
            job.x = spoilt.device();
            Result result = Runner::Get().Run(job, spec);
            const int64_t row_bytes = kN * kernels::ElementBytes(y_dtype);
            for (int64_t i = 0; i < m; ++i) {
              Result row = result;
              row.data = result.Row(i);
              if (std::find(bad_rows.begin(), bad_rows.end(), i) ==
                  bad_rows.end()) {
                ASSERT_EQ(CompareBits(row,
                                      {expected.data() + i * row_bytes,
                                       static_cast<size_t>(row_bytes)},
                                      1, kN),
                          "")
                    << name << " m=" << m << " row " << i << " "
                    << spec.ToString();
                continue;
              }
              for (int64_t j = 0; j < kN; ++j) {
                ASSERT_FALSE(std::isfinite(row.At(0, j)))
                    << name << " m=" << m << " y[" << i << ", " << j << "] "
                    << spec.ToString();
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace nibble::test
