// What tests of linear layers of the CUDA backend begin with.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/device.h"
#include "kernels/cuda/linear/cuda_activations.h"
#include "kernels/cuda/linear/linear_context.h"
#include "kernels/cuda/linear/plan_cache.h"
#include "kernels/cuda/runtime.h"
#include "tests/kernels/cuda/w4_cases.h"
#include "tests/kernels/cuda/w4_harness.h"
#include "tests/kernels/cuda/w4_reference.h"
#include "tests/support/random.h"

namespace nibble::test {

// A context for layers on the first device, random weights, and activations.
class LayerTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    stream_ = std::make_unique<kernels::cuda::Stream>();
    context_ = {.device = kernels::cuda::ListDevices().value().at(0),
                .stream = stream_.get(),
                .scratch = &scratch_,
                .plans = &plans_,
                .pack_threads = 4};
  }

  CaseWeight Weight(const std::string& name, int64_t n, int64_t k) {
    return {WeightCaseByName(name), n, k, random_};
  }

  // Activations whose rows from `first` on are the first `rows` of x.
  std::unique_ptr<kernels::cuda::CudaActivations> Upload(
      const Inputs& x, int64_t rows, int64_t first,
      kernels::WidePacking codes = kernels::WidePacking::kNone) {
    auto activations = kernels::cuda::CudaActivations::Make(
                           rows + first, x.k(), x.dtype(), *stream_, codes)
                           .value();
    EXPECT_EQ(activations->pitch(), x.pitch());
    NIBBLE_CUDA_CHECK(cudaMemcpyAsync(
        activations->Row(first), x.device(), rows * x.pitch() * 2,
        cudaMemcpyDeviceToDevice, stream_->get()));
    return activations;
  }

  Random random_{1};
  std::unique_ptr<kernels::cuda::Stream> stream_;
  kernels::cuda::LinearScratch scratch_;
  kernels::cuda::PlanCache plans_{""};
  kernels::cuda::CudaLinearContext context_;
};

}  // namespace nibble::test
