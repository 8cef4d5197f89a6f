// What cuBLASLt makes of linear layers: on 16-bit operands, which all else is
// compared with, and on others that a sweep has.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "bench/gpu_activations.h"
#include "bench/gpu_candidate.h"
#include "bench/gpu_choice.h"
#include "bench/gpu_operands.h"
#include "kernels/tensor.h"

namespace nibble::bench {

// What cuBLASLt's fastest algorithm for `problem` is, of x and the weights of
// `candidate`, which writes bench.y(). Null, said on stdout, where it has none.
std::shared_ptr<const CublasChoice> ChooseCublas(
    const SweepTools& tools, const CandidateBench& bench,
    const Candidate& candidate, const kernels::cuda::CublasLtProblem& problem,
    const void* x);

// Makes it what `candidate` runs.
void RunByCublas(std::shared_ptr<const CublasChoice> choice,
                 const SweepTools& tools, const CandidateBench& bench,
                 const void* x, Candidate& candidate);

// cuBLASLt on 16-bit weights of one shape, by itself (cublas_bf16, cublas_fp16)
// and behind the norm (..._norm). Candidates use it: it outlives them and stays
// where it is. Owned by a sweep.
class DenseCandidates final {
 public:
  // All are borrowed.
  DenseCandidates(const SweepOptions& options, const SweepTools& tools,
                  const HiddenStates& hidden, const CandidateBench& bench)
      : options_(options), tools_(tools), hidden_(hidden), bench_(bench) {}

  // The weights, if there is cuBLASLt and anything is timed.
  absl::Status Allocate(kernels::DType dtype, Shape shape);

  // Those that options.paths wants, if there are weights.
  void AddTo(int64_t m, std::vector<Candidate>& candidates) const;

 private:
  const SweepOptions& options_;
  const SweepTools& tools_;
  const HiddenStates& hidden_;
  const CandidateBench& bench_;
  kernels::DType dtype_ = kernels::DType::kBF16;
  Shape shape_;
  std::optional<Weights> weights_;
  std::vector<float> host_;  // [n, k]
};

}  // namespace nibble::bench
