#include "bench/gpu_linear.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/gpu_check.h"
#include "bench/gpu_choice.h"
#include "bench/gpu_probes.h"
#include "kernels/cuda/linear/w4a16.h"

namespace nibble::bench {
namespace {

using kernels::DType;
using kernels::LaunchSpec;
using kernels::cuda::DeviceBuffer;
using kernels::cuda::PinnedBuffer;
using kernels::cuda::W4Args;

// Of results rounded to BF16 and of FP16 ones alike.
constexpr double kMaxRelativeError = 3e-3;

// Which of the weights' copies to multiply, and whether the launch may overlap
// the one before.
struct Turn {
  int64_t node = 0;
  bool overlap = false;
};

// One way to compute y, ready to be checked and timed.
struct Candidate {
  std::string path;
  std::string choice;
  std::function<void(Turn)> enqueue;
  bool can_overlap = true;
};

// One shape: its activations and results, and what runs on them. Owned by
// SweepLinear.
class ShapeSweep final {
 public:
  ShapeSweep(const SweepOptions& options, const SweepTools& tools, Shape shape)
      : options_(options), tools_(tools), shape_(shape) {}

  absl::Status Allocate();
  absl::Status RunDense();
  absl::Status RunFormat(const W4Format& format);
  int wrong() const { return wrong_; }

 private:
  // Weights, the name of their format, and what their results should be.
  struct Subject {
    std::string_view format;
    const Weights& weights;
    LinearReference reference;
  };

  Subject MakeSubject(std::string_view format, const Weights& weights) const {
    return {format, weights,
            LinearReference(weights, shape_, options_.x_dtype,
                            {x_host_.as<uint16_t>(),
                             static_cast<size_t>(max_m_ * shape_.k)})};
  }
  double Check(const Candidate& candidate, LinearReference& reference,
               int64_t m);
  void CheckAndTime(const Candidate& candidate, Subject& subject, int64_t m);
  void Time(const Candidate& candidate, const Weights& weights, Row& row);
  W4Args Args(const Weights& weights, int64_t node, int64_t m) const;
  cudaStream_t stream() const { return tools_.timer->stream().get(); }

  const SweepOptions& options_;
  const SweepTools& tools_;
  const Shape shape_;
  int64_t max_m_ = 0;
  DeviceBuffer x_, y_, scratch_;
  PinnedBuffer x_host_, y_host_;
  std::map<int64_t, double> dense_us_;  // by M
  int wrong_ = 0;
};

absl::Status ShapeSweep::Allocate() {
  max_m_ = *std::max_element(options_.m.begin(), options_.m.end());
  const int64_t x_bytes = 2 * max_m_ * shape_.k;
  const int64_t y_bytes = 2 * max_m_ * shape_.n;
  NIBBLE_ASSIGN_OR_RETURN(x_, DeviceBuffer::Make(x_bytes));
  NIBBLE_ASSIGN_OR_RETURN(y_, DeviceBuffer::Make(y_bytes));
  NIBBLE_ASSIGN_OR_RETURN(
      scratch_,
      DeviceBuffer::Make(kernels::cuda::W4ScratchBytes(max_m_, shape_.k)));
  NIBBLE_ASSIGN_OR_RETURN(x_host_, PinnedBuffer::Make(x_bytes));
  NIBBLE_ASSIGN_OR_RETURN(y_host_, PinnedBuffer::Make(y_bytes));
  LaunchFillUniform(options_.x_dtype, x_.data(), max_m_ * shape_.k,
                    {.low = -1, .high = 1}, 7, stream());
  NIBBLE_CUDA_CHECK(cudaMemcpyAsync(x_host_.data(), x_.data(), x_bytes,
                                    cudaMemcpyDeviceToHost, stream()));
  tools_.timer->stream().Synchronize();
  return absl::OkStatus();
}

W4Args ShapeSweep::Args(const Weights& weights, int64_t node, int64_t m) const {
  return {.w = weights.W4(node),
          .x = x_.data(),
          .ldx = shape_.k,
          .x_dtype = options_.x_dtype,
          .y = y_.data(),
          .ldy = shape_.n,
          .y_dtype = options_.x_dtype,
          .m = m,
          .n_out = shape_.n,
          .scratch = scratch_.data()};
}

double ShapeSweep::Check(const Candidate& candidate, LinearReference& reference,
                         int64_t m) {
  const int64_t count = m * shape_.n;
  constexpr int kNanBytes = 0xff;  // a NaN as BF16 and as FP16
  NIBBLE_CUDA_CHECK(cudaMemsetAsync(y_.data(), kNanBytes, 2 * count, stream()));
  candidate.enqueue({});
  NIBBLE_CUDA_CHECK(cudaMemcpyAsync(y_host_.data(), y_.data(), 2 * count,
                                    cudaMemcpyDeviceToHost, stream()));
  tools_.timer->stream().Synchronize();
  return reference.RelativeError(
      {y_host_.as<uint16_t>(), static_cast<size_t>(count)}, m);
}

void ShapeSweep::Time(const Candidate& candidate, const Weights& weights,
                      Row& row) {
  GpuTimer& timer = *tools_.timer;
  const Rotation& rotation = weights.rotation();
  row.floor_us = timer.ReadColdUs(rotation);
  row.us_load_node = timer.ReadNodeUs(rotation);
  row.us_cold = timer.ColdUs([&] { candidate.enqueue({}); });
  row.us_graph_plain =
      timer.NodeUs(row.us_cold, rotation.bytes,
                   [&](int64_t node) { candidate.enqueue({.node = node}); });
  row.us_graph = row.us_graph_plain;
  if (candidate.can_overlap) {
    row.us_graph = timer.NodeUs(row.us_cold, rotation.bytes, [&](int64_t node) {
      candidate.enqueue({.node = node, .overlap = true});
    });
  }
  row.bytes = rotation.bytes + 2 * row.m * (shape_.n + shape_.k);
  row.pct_peak = 100 * std::max(row.gbps() / tools_.ceilings.peak_gbps(),
                                row.tflops() / options_.peak_tflops);
}

void ShapeSweep::CheckAndTime(const Candidate& candidate, Subject& subject,
                              int64_t m) {
  Row row{.path = candidate.path,
          .format = std::string(subject.format),
          .m = m,
          .n = shape_.n,
          .k = shape_.k,
          .choice = candidate.choice};
  row.rel_err = Check(candidate, subject.reference, m);
  row.wrong = !(row.rel_err <= kMaxRelativeError);
  wrong_ += row.wrong ? 1 : 0;
  if (options_.check_only) {
    std::printf("%-11s %-9s %5lldx%-5lld M %-4lld error %.1e %s  [%s]\n",
                row.path.c_str(), row.format.c_str(),
                static_cast<long long>(row.n), static_cast<long long>(row.k),
                static_cast<long long>(row.m), row.rel_err,
                row.wrong ? "WRONG" : "ok", row.choice.c_str());
    return;
  }
  if (!row.wrong) Time(candidate, subject.weights, row);
  if (!candidate.can_overlap) dense_us_[m] = row.us_cold;
  row.bf16_us = dense_us_[m];
  Print(row);
  tools_.csv->Write(row);
}

absl::Status ShapeSweep::RunDense() {
  if (tools_.cublas == nullptr || options_.check_only) return absl::OkStatus();
  const bool bf16 = options_.x_dtype == DType::kBF16;
  NIBBLE_ASSIGN_OR_RETURN(
      const Weights weights,
      Weights::MakeDense(options_.x_dtype, shape_, tools_.timer->stream()));
  Subject subject = MakeSubject(bf16 ? "bf16" : "fp16", weights);
  for (const int64_t m : options_.m) {
    NIBBLE_ASSIGN_OR_RETURN(
        const CublasChoice choice,
        FastestCublas(*tools_.timer, *tools_.cublas,
                      {.m = m,
                       .n = shape_.n,
                       .k = shape_.k,
                       .input = options_.x_dtype,
                       .output = options_.x_dtype},
                      x_.data(), weights.rotation().data, y_.data()));
    CheckAndTime({.path = bf16 ? "cublas_bf16" : "cublas_fp16",
                  .choice = absl::StrCat("algorithm ", choice.algorithm, " of ",
                                         choice.matmul.algorithms()),
                  .enqueue =
                      [&](Turn turn) {
                        RunCublas(choice, x_.data(),
                                  weights.rotation().At(turn.node), y_.data(),
                                  tools_.timer->stream());
                      },
                  .can_overlap = false},
                 subject, m);
  }
  return absl::OkStatus();
}

absl::Status ShapeSweep::RunFormat(const W4Format& format) {
  NIBBLE_ASSIGN_OR_RETURN(
      const Weights weights,
      Weights::MakeW4(format, shape_, tools_.timer->stream()));
  Subject subject = MakeSubject(format.name, weights);
  for (const int64_t m : options_.m) {
    std::vector<LaunchSpec> specs;
    if (options_.check_only || options_.every) {
      specs = W4Candidates(weights.W4(0), m, kernels::cuda::W4Epilogue::kStore,
                           *tools_.device);
    } else {
      for (auto& [kernel, spec] :
           FastestW4(*tools_.timer, Args(weights, 0, m), *tools_.device)) {
        specs.push_back(spec);
      }
    }
    for (const LaunchSpec& spec : specs) {
      CheckAndTime({.path = spec.kernel,
                    .choice = spec.ToString(),
                    .enqueue =
                        [&](Turn turn) {
                          LaunchW4(Args(weights, turn.node, m), spec,
                                   *tools_.device, stream(),
                                   {.overlap = turn.overlap});
                        }},
                   subject, m);
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool SweepOptions::Wants(std::string_view path) const {
  return paths.empty() ||
         std::any_of(paths.begin(), paths.end(), [&](const std::string& begin) {
           return path.starts_with(begin);
         });
}

absl::StatusOr<int> SweepLinear(const SweepOptions& options,
                                const SweepTools& tools) {
  int wrong = 0;
  for (const Shape shape : options.shapes) {
    ShapeSweep sweep(options, tools, shape);
    NIBBLE_RETURN_IF_ERROR(sweep.Allocate());
    NIBBLE_RETURN_IF_ERROR(sweep.RunDense());
    for (const W4Format& format : options.formats) {
      NIBBLE_RETURN_IF_ERROR(sweep.RunFormat(format));
    }
    wrong += sweep.wrong();
  }
  return wrong;
}

absl::StatusOr<std::map<int64_t, double>> TimeCublasBf16(
    const SweepOptions& options, const SweepTools& tools, Shape shape) {
  std::map<int64_t, double> us;
  if (tools.cublas == nullptr || options.check_only) return us;
  const GpuTimer& timer = *tools.timer;
  const int64_t max_m = *std::max_element(options.m.begin(), options.m.end());
  NIBBLE_ASSIGN_OR_RETURN(
      const Weights weights,
      Weights::MakeDense(DType::kBF16, shape, timer.stream()));
  NIBBLE_ASSIGN_OR_RETURN(const DeviceBuffer x,
                          DeviceBuffer::Make(2 * max_m * shape.k));
  NIBBLE_ASSIGN_OR_RETURN(const DeviceBuffer y,
                          DeviceBuffer::Make(2 * max_m * shape.n));
  LaunchFillUniform(DType::kBF16, x.data(), max_m * shape.k,
                    {.low = -1, .high = 1}, 7, timer.stream().get());
  for (const int64_t m : options.m) {
    const void* w = weights.rotation().data;
    NIBBLE_ASSIGN_OR_RETURN(const CublasChoice choice,
                            FastestCublas(timer, *tools.cublas,
                                          {.m = m, .n = shape.n, .k = shape.k},
                                          x.data(), w, y.data()));
    us[m] = timer.ColdUs(
        [&] { RunCublas(choice, x.data(), w, y.data(), timer.stream()); });
  }
  return us;
}

}  // namespace nibble::bench
