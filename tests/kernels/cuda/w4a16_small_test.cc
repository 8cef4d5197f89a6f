// Every compiled variant of the W4A16 kernel for few rows, also those that no
// plan for this GPU would take: the same bits.
#include "kernels/cuda/linear/w4a16_small.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/kernels/cuda/w4_cases.h"
#include "tests/kernels/cuda/w4_harness.h"
#include "tests/kernels/cuda/w4_reference.h"
#include "tests/support/random.h"

namespace nibble::test {
namespace {

using kernels::DType;
using kernels::WeightView;
using kernels::cuda::DeviceInfo;
using kernels::cuda::kClusters;
using kernels::cuda::kSmallVariants;
using kernels::cuda::SmallSpec;
using kernels::cuda::SmallVariant;
using kernels::cuda::W4Epilogue;
using kernels::cuda::W4Feasible;

class W4Small : public GpuTest,
                public ::testing::WithParamInterface<std::string> {
 protected:
  // Runs a job in every way; `expected` is set by the first.
  void RunAllWays(const Job& job,
                  std::optional<std::vector<std::byte>>& expected);
};

void W4Small::RunAllWays(const Job& job,
                         std::optional<std::vector<std::byte>>& expected) {
  for (const SmallVariant& variant : kSmallVariants) {
    for (const int cluster : kClusters) {
      if ((cluster > 1) != variant.cluster) continue;
      for (const int lanes : {1, 2, 3, 4, 5, 8, 16}) {
        const auto spec = SmallSpec({variant, lanes, cluster});
        if (!W4Feasible(job.w, job.m, job.epilogue, spec, *job.device)) {
          continue;
        }
        const Result result = Runner::Get().Run(job, spec);
        if (!expected.has_value()) expected = Copy(result, job.m, job.n_out);
        ASSERT_EQ(CompareBits(result, *expected, job.m, job.n_out), "")
            << job.w.n << "x" << job.w.k << " m=" << job.m << " "
            << spec.ToString() << " as on " << job.device->ToString();
      }
    }
  }
}

// The whole GPU, and a few of its processors with the least memory that any
// has, so that CTAs have many tiles and sum them up in several epochs.
std::vector<DeviceInfo> Devices() {
  DeviceInfo small = Runner::Get().device();
  small.multiprocessors = 9;
  small.shared_memory_bytes = int64_t{99} << 10;
  return {Runner::Get().device(), small};
}

TEST_P(W4Small, AllVariantsGiveTheSameBits) {
  constexpr int64_t kN = 2112;
  for (const int64_t k : {512, 1536, 3584, 8960}) {
    Random random(static_cast<uint64_t>(k));
    const CaseWeight weight(WeightCaseByName(GetParam()), kN, k, random);
    const WeightView view = weight.View();
    const DeviceWeight packed = DeviceWeight::Make({&view, 1}).value();
    for (const DType x_dtype : {DType::kBF16, DType::kF16}) {
      Job job = Job::Of(packed, Inputs::Normal(x_dtype, k), 0);
      for (const W4Epilogue epilogue :
           {W4Epilogue::kStore, W4Epilogue::kSiluMul}) {
        job.epilogue = epilogue;
        job.n_out = epilogue == W4Epilogue::kStore ? kN : kN / 2;
        for (const int64_t m : {1, 5, 8, 19}) {
          job.m = m;
          std::optional<std::vector<std::byte>> expected;
          for (const DeviceInfo& device : Devices()) {
            job.device = &device;
            RunAllWays(job, expected);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

std::string ParamName(const ::testing::TestParamInfo<std::string>& info) {
  return info.param;
}

INSTANTIATE_TEST_SUITE_P(Layouts, W4Small,
                         ::testing::Values("int4_g32", "int4_g64", "int4_g128",
                                           "int4s_g32", "int4s_g64",
                                           "int4s_g128", "gptq_g32", "gptq_g64",
                                           "gptq_g128", "q4_k", "mxfp4",
                                           "nvfp4"),
                         ParamName);

}  // namespace
}  // namespace nibble::test
