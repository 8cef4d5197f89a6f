// How CudaLinear comes by its plans.
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cuda/linear/build_id.h"
#include "kernels/cuda/linear/cuda_activations.h"
#include "kernels/cuda/linear/cuda_linear.h"
#include "kernels/cuda/linear/tune.h"

namespace nibble::kernels::cuda {
namespace {

std::string LayoutName(const W4Layout& layout) {
  const char* scale = "";
  switch (layout.scale) {
    case W4Scale::kScale:
      scale = "scale";
      break;
    case W4Scale::kScaleMin:
      scale = "min";
      break;
    case W4Scale::kScaleZero:
      scale = "zero";
      break;
    case W4Scale::kQ4K:
      scale = "q4k";
      break;
    case W4Scale::kE8m0:
      scale = "e8m0";
      break;
    case W4Scale::kE4m3:
      scale = "e4m3";
      break;
  }
  return absl::StrCat(layout.code == W4Code::kInt4 ? "int4-" : "e2m1-", scale,
                      "-g", layout.group);
}

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

// Memory for the multiplications that are timed. Lives on a stack.
struct TuneBuffers {
  DeviceBuffer x;
  DeviceBuffer y;
  DeviceBuffer scratch;

  static absl::StatusOr<TuneBuffers> Make(const W4Args& args, int64_t max_rows,
                                          const Stream& stream) {
    const int64_t bytes = ElementBytes(args.x_dtype);
    TuneBuffers buffers;
    NIBBLE_ASSIGN_OR_RETURN(buffers.x,
                            DeviceBuffer::Make(max_rows * args.ldx * bytes));
    NIBBLE_ASSIGN_OR_RETURN(buffers.y,
                            DeviceBuffer::Make(max_rows * args.ldy * bytes));
    NIBBLE_ASSIGN_OR_RETURN(buffers.scratch, DeviceBuffer::Make(W4ScratchBytes(
                                                 max_rows, args.w.k)));
    // 0.011 in BF16, 1.06 in FP16. Zeros would take less power than numbers.
    constexpr int kFill = 0x3c;
    NIBBLE_CUDA_CHECK(cudaMemsetAsync(buffers.x.data(), kFill,
                                      static_cast<size_t>(buffers.x.bytes()),
                                      stream.get()));
    return buffers;
  }
};

}  // namespace

PlanKey CudaLinear::KeyFor(const Segment& segment) const {
  return {.gpu = context_.device.name,
          .cuda = CudaVersions(),
          .build = std::string(LinearBuildId()),
          .layout = LayoutName(segment.weights.layout),
          .x_dtype = context_.x_dtype == DType::kBF16 ? "bf16" : "f16",
          .epilogue = epilogue_ == W4Epilogue::kSiluMul ? "silu_mul" : "store",
          .n = segment.weights.n,
          .k = segment.weights.k,
          .max_rows = max_rows_};
}

LinearPlan CudaLinear::MakePlan(const Segment& segment) const {
  TuneProblem problem{.candidates =
                          [&](int64_t rows) {
                            return W4Candidates(segment.weights, rows,
                                                epilogue_, context_.device);
                          },
                      .feasible =
                          [&](int64_t rows, const LaunchSpec& spec) {
                            return W4Feasible(segment.weights, rows, epilogue_,
                                              spec, context_.device);
                          },
                      .run_us = nullptr,
                      .now_seconds = SteadySeconds};
  const PlanKey key = KeyFor(segment);
  if (const auto kept = context_.plans->Find(key);
      kept.has_value() && PlanIsFeasible(*kept, problem, max_rows_)) {
    return *kept;
  }
  W4Args args{.w = segment.weights,
              .ldx = ActivationPitch(k_),
              .x_dtype = context_.x_dtype,
              .ldy = segment.columns,
              .y_dtype = context_.x_dtype,
              .n_out = segment.columns,
              .epilogue = epilogue_};
  absl::StatusOr<TuneBuffers> buffers = absl::UnavailableError("no timer");
  if (context_.timer != nullptr) {
    buffers = TuneBuffers::Make(args, max_rows_, *context_.stream);
  }
  // Without a timer, or room for what it would run, the plan is a guess.
  if (buffers.ok()) {
    args.x = buffers->x.data();
    args.y = buffers->y.data();
    args.scratch = buffers->scratch.data();
    problem.run_us = [&](int64_t rows, const LaunchSpec& spec) {
      args.m = rows;
      return context_.timer->RunUs([&] {
        LaunchW4(args, spec, context_.device, context_.stream->get());
      });
    };
  }
  TuneResult result = Tune(problem, {.max_rows = max_rows_,
                                     .budget_seconds = context_.tune_seconds});
  if (result.complete) context_.plans->Store(key, result.plan);
  return std::move(result.plan);
}

}  // namespace nibble::kernels::cuda
