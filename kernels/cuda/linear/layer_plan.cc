#include "kernels/cuda/linear/layer_plan.h"

#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cuda/linear/build_id.h"
#include "kernels/cuda/linear/tune.h"

namespace nibble::kernels::cuda {
namespace {

// "13.0/13.0": of the driver and of the runtime in this program.
std::string CudaVersions() {
  int driver = 0;  // 1000 * major + 10 * minor
  int runtime = 0;
  NIBBLE_CUDA_CHECK(cudaDriverGetVersion(&driver));
  NIBBLE_CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  return absl::StrCat(driver / 1000, ".", driver % 1000 / 10, "/",
                      runtime / 1000, ".", runtime % 1000 / 10);
}

double SteadySeconds() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

LinearPlan MakeLayerPlan(const LayerPlanProblem& problem,
                         const CudaLinearContext& context) {
  const PlanKey key{.gpu = context.device.name,
                    .cuda = CudaVersions(),
                    .build = std::string(LinearBuildId()),
                    .layout = problem.layout,
                    .x_dtype = problem.x_dtype,
                    .epilogue = problem.epilogue,
                    .n = problem.n,
                    .k = problem.k,
                    .max_rows = problem.max_rows};
  TuneProblem tune{.candidates = problem.candidates,
                   .feasible = problem.feasible,
                   .run_us = nullptr,
                   .now_seconds = SteadySeconds};
  if (const auto kept = context.plans->Find(key);
      kept.has_value() && PlanIsFeasible(*kept, tune, problem.max_rows)) {
    return *kept;
  }
  absl::StatusOr<LayerPlanProblem::Enqueue> enqueue =
      absl::UnavailableError("no timer");
  if (context.timer != nullptr) enqueue = problem.make_enqueue();
  if (enqueue.ok()) {
    tune.run_us = [&](int64_t rows, const LaunchSpec& spec) {
      return context.timer->RunUs([&] { (*enqueue)(rows, spec); });
    };
  }
  TuneResult result = Tune(tune, {.max_rows = problem.max_rows,
                                  .budget_seconds = context.tune_seconds});
  if (result.complete) context.plans->Store(key, result.plan);
  return std::move(result.plan);
}

absl::StatusOr<DeviceBuffer> MakeFilled(int64_t bytes, const Stream& stream) {
  constexpr int kFill = 0x3c;
  NIBBLE_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Make(bytes));
  NIBBLE_CUDA_CHECK(cudaMemsetAsync(buffer.data(), kFill,
                                    static_cast<size_t>(bytes), stream.get()));
  return buffer;
}

}  // namespace nibble::kernels::cuda
