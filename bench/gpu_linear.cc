#include "bench/gpu_linear.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/gpu_activations.h"
#include "bench/gpu_candidate.h"
#include "bench/gpu_check.h"
#include "bench/gpu_choice.h"
#include "bench/gpu_dense.h"
#include "kernels/cuda/linear/w4a16.h"

namespace nibble::bench {
namespace {

using kernels::LaunchSpec;
using kernels::cuda::DeviceBuffer;
using kernels::cuda::W4Args;

// The W4A16 kernels on random weights of one shape and format, by themselves
// and behind the norm (NAME_norm). Candidates use it: it outlives them and
// stays where it is. Owned by SweepLinear.
class W4a16Candidates final {
 public:
  // All are borrowed.
  W4a16Candidates(const SweepOptions& options, const SweepTools& tools,
                  const HiddenStates& hidden, const CandidateBench& bench)
      : options_(options), tools_(tools), hidden_(hidden), bench_(bench) {}

  absl::Status Allocate(const W4Format& format, Shape shape);

  // The fastest of each kernel that options.paths wants; with options.every or
  // check_only all ways.
  void AddTo(int64_t m, std::vector<Candidate>& candidates) const;

 private:
  W4Args Args(int64_t m, int64_t node, const void* x) const;
  std::vector<LaunchSpec> Specs(int64_t m) const;
  double Product(const std::vector<double>& x, int64_t column) const;

  const SweepOptions& options_;
  const SweepTools& tools_;
  const HiddenStates& hidden_;
  const CandidateBench& bench_;
  std::string_view format_;
  Shape shape_;
  std::optional<Weights> weights_;
  UnpackRow unpack_;
  DeviceBuffer scratch_;
};

absl::Status W4a16Candidates::Allocate(const W4Format& format, Shape shape) {
  format_ = format.name;
  shape_ = shape;
  NIBBLE_ASSIGN_OR_RETURN(
      weights_, Weights::MakeW4(format, shape, tools_.timer->stream()));
  unpack_ = weights_->ReadRows(0, shape.n);
  const int64_t max_m = *std::max_element(options_.m.begin(), options_.m.end());
  NIBBLE_ASSIGN_OR_RETURN(
      scratch_,
      DeviceBuffer::Make(kernels::cuda::W4ScratchBytes(max_m, shape.k)));
  return absl::OkStatus();
}

W4Args W4a16Candidates::Args(int64_t m, int64_t node, const void* x) const {
  return {.w = weights_->W4(node),
          .x = x,
          .ldx = shape_.k,
          .x_dtype = options_.x_dtype,
          .y = bench_.y(),
          .ldy = shape_.n,
          .y_dtype = options_.x_dtype,
          .m = m,
          .n_out = shape_.n,
          .scratch = scratch_.data()};
}

std::vector<LaunchSpec> W4a16Candidates::Specs(int64_t m) const {
  if (options_.check_only || options_.every) {
    return W4Candidates(weights_->W4(0), m, kernels::cuda::W4Epilogue::kStore,
                        *tools_.device);
  }
  std::vector<LaunchSpec> specs;
  for (auto& [kernel, spec] :
       FastestW4(*tools_.timer, Args(m, 0, hidden_.hidden()), *tools_.device)) {
    specs.push_back(spec);
  }
  return specs;
}

double W4a16Candidates::Product(const std::vector<double>& x,
                                int64_t column) const {
  std::vector<float> w(shape_.k);
  unpack_(column, w.data());
  return Dot(x, w.data());
}

void W4a16Candidates::AddTo(int64_t m,
                            std::vector<Candidate>& candidates) const {
  if (!options_.WantsAnyOf("w4a16")) return;
  for (const LaunchSpec& spec : Specs(m)) {
    const auto run = [this, m, spec](const void* x, Turn turn) {
      LaunchW4(Args(m, turn.node, x), spec, *tools_.device,
               tools_.timer->stream().get(), {.overlap = turn.overlap});
    };
    Candidate alone{
        .path = spec.kernel,
        .format = std::string(format_),
        .choice = spec.ToString(),
        .max_error = kMaxRelativeError,
        .weights = weights_->rotation(),
        .bytes = weights_->rotation().bytes + 2 * m * (shape_.n + shape_.k),
        .y_dtype = options_.x_dtype};
    Candidate norm = alone;
    alone.enqueue = [this, run](Turn turn) { run(hidden_.hidden(), turn); };
    alone.reference = [this](int64_t row, int64_t column) {
      return Product(hidden_.HiddenRow(row), column);
    };
    norm.path = absl::StrCat(spec.kernel, "_norm");
    norm.behind_norm = true;
    norm.enqueue = [this, run, m](Turn turn) {
      hidden_.Norm(m, turn.overlap, tools_.timer->stream());
      run(hidden_.normed(), {.node = turn.node, .overlap = true});
    };
    norm.reference = [this](int64_t row, int64_t column) {
      return Product(hidden_.NormedRow(row), column);
    };
    AddWanted(options_, std::move(alone), candidates);
    AddWanted(options_, std::move(norm), candidates);
  }
}

}  // namespace

bool SweepOptions::Wants(std::string_view path) const {
  return paths.empty() ||
         std::any_of(paths.begin(), paths.end(), [&](const std::string& begin) {
           return path.starts_with(begin);
         });
}

bool SweepOptions::WantsAnyOf(std::string_view path) const {
  return Wants(path) ||
         std::any_of(paths.begin(), paths.end(), [&](const std::string& begin) {
           return begin.starts_with(path);
         });
}

absl::StatusOr<int> SweepLinear(const SweepOptions& options,
                                const SweepTools& tools) {
  int wrong = 0;
  const int64_t max_m = *std::max_element(options.m.begin(), options.m.end());
  for (const Shape shape : options.shapes) {
    NIBBLE_ASSIGN_OR_RETURN(CandidateBench bench,
                            CandidateBench::Make(options, tools, shape));
    NIBBLE_ASSIGN_OR_RETURN(const HiddenStates hidden,
                            HiddenStates::Make(options.x_dtype, max_m, shape.k,
                                               tools.timer->stream()));
    DenseCandidates dense(options, tools, hidden, bench);
    NIBBLE_RETURN_IF_ERROR(dense.Allocate(options.x_dtype, shape));
    std::deque<W4a16Candidates> formats;
    for (const W4Format& format : options.formats) {
      formats.emplace_back(options, tools, hidden, bench);
      NIBBLE_RETURN_IF_ERROR(formats.back().Allocate(format, shape));
    }
    for (const int64_t m : options.m) {
      std::vector<Candidate> candidates;
      dense.AddTo(m, candidates);
      for (const W4a16Candidates& format : formats) format.AddTo(m, candidates);
      bench.Run(m, candidates);
    }
    wrong += bench.wrong();
  }
  return wrong;
}

}  // namespace nibble::bench
