#include "bench/gpu_dense.h"

#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/gpu_check.h"

namespace nibble::bench {

using kernels::DType;
using kernels::cuda::CublasLtProblem;

std::shared_ptr<const CublasChoice> ChooseCublas(const SweepTools& tools,
                                                 const CandidateBench& bench,
                                                 const Candidate& candidate,
                                                 const CublasLtProblem& problem,
                                                 const void* x) {
  auto choice = FastestCublas(*tools.timer, *tools.cublas, problem, x,
                              candidate.weights.data, bench.y());
  if (choice.ok()) return std::make_shared<CublasChoice>(*std::move(choice));
  std::printf("%s M %lld: %s\n", candidate.path.c_str(),
              static_cast<long long>(problem.m),
              choice.status().ToString().c_str());
  return nullptr;
}

void RunByCublas(std::shared_ptr<const CublasChoice> choice,
                 const SweepTools& tools, const CandidateBench& bench,
                 const void* x, Candidate& candidate) {
  candidate.choice = absl::StrCat("algorithm ", choice->algorithm, " of ",
                                  choice->matmul.algorithms());
  candidate.may_overlap = false;
  candidate.enqueue = [choice = std::move(choice), &tools, &bench, x,
                       weights = candidate.weights](Turn turn) {
    RunCublas(*choice, x, weights.At(turn.node), bench.y(),
              tools.timer->stream());
  };
}

absl::Status DenseCandidates::Allocate(DType dtype, Shape shape) {
  if (tools_.cublas == nullptr || options_.check_only) return absl::OkStatus();
  dtype_ = dtype;
  shape_ = shape;
  NIBBLE_ASSIGN_OR_RETURN(
      weights_, Weights::MakeDense(dtype, shape, tools_.timer->stream()));
  host_.resize(shape.n * shape.k);
  const UnpackRow unpack = weights_->ReadRows(0, shape.n);
  ParallelFor(shape.n,
              [&](int64_t row) { unpack(row, host_.data() + row * shape_.k); });
  return absl::OkStatus();
}

void DenseCandidates::AddTo(int64_t m,
                            std::vector<Candidate>& candidates) const {
  const bool bf16 = dtype_ == DType::kBF16;
  const std::string name = bf16 ? "cublas_bf16" : "cublas_fp16";
  if (!weights_.has_value() || !options_.WantsAnyOf(name)) return;
  Candidate alone{
      .path = name,
      .format = bf16 ? "bf16" : "fp16",
      .max_error = kMaxRelativeError,
      .weights = weights_->rotation(),
      .bytes = weights_->rotation().bytes + 2 * m * (shape_.n + shape_.k),
      .y_dtype = dtype_,
      .baseline = true};
  alone.reference = [this](int64_t row, int64_t column) {
    return Dot(hidden_.HiddenRow(row), &host_[column * shape_.k]);
  };
  const auto choice = ChooseCublas(
      tools_, bench_, alone,
      {.m = m, .n = shape_.n, .k = shape_.k, .input = dtype_, .output = dtype_},
      hidden_.hidden());
  if (choice == nullptr) return;
  Candidate norm = alone;
  RunByCublas(choice, tools_, bench_, hidden_.hidden(), alone);
  RunByCublas(choice, tools_, bench_, hidden_.normed(), norm);
  norm.path = absl::StrCat(name, "_norm");
  norm.behind_norm = true;
  norm.baseline = false;
  norm.reference = [this](int64_t row, int64_t column) {
    return Dot(hidden_.NormedRow(row), &host_[column * shape_.k]);
  };
  norm.enqueue = [this, m, enqueue = norm.enqueue](Turn turn) {
    hidden_.Norm(m, false, tools_.timer->stream());
    enqueue(turn);
  };
  AddWanted(options_, std::move(alone), candidates);
  AddWanted(options_, std::move(norm), candidates);
}

}  // namespace nibble::bench
