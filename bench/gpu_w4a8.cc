#include "bench/gpu_w4a8.h"

#include <algorithm>
#include <deque>
#include <map>
#include <string_view>

#include "base/status.h"
#include "bench/gpu_activations.h"
#include "bench/gpu_candidate.h"
#include "bench/gpu_dense.h"
#include "bench/gpu_w4a8_candidates.h"
#include "bench/gpu_w4a8_operands.h"

namespace nibble::bench {
namespace {

using kernels::DType;
using kernels::cuda::W4a8Kind;
using kernels::cuda::W4Numbers;

constexpr W4a8Path kPaths[] = {
    {"w4a8_int8_rerounded", "int4-g128", {W4a8Kind::kRerounded, 128}},
    {"w4a8_int8", "int4-g128", {W4a8Kind::kScaleMin, 128}},
    {"w4a8_int8", "int4s-g128", {W4a8Kind::kScaleMin, 128}},
    {"w4a8_int8_signed", "int4s-g128", {W4a8Kind::kScale, 128}},
    {"w4a8_fp8", "int4-g128", {W4a8Kind::kE4m3, 128}},
    {"w4a8_int8", "q4_0", {W4a8Kind::kScaleMin, 32}},
    {"w4a8_int8_signed", "q4_0", {W4a8Kind::kScale, 32}},
    {"w4a8_fp8", "q4_0", {W4a8Kind::kE4m3, 32}},
    {"q4k_int8_rerounded", "q4_k", {W4a8Kind::kRerounded, 32}},
    {"q4k_int8", "q4_k", {W4a8Kind::kSubScale, 32}},
    {"q4k_int8_steps", "q4_k", {W4a8Kind::kSubScaleSums, 32}},
    {"q4k_int8_float", "q4_k", {W4a8Kind::kSubScaleFloat, 32}},
};

}  // namespace

absl::StatusOr<int> SweepW4a8(const SweepOptions& options,
                              const SweepTools& tools) {
  int wrong = 0;
  const int64_t max_m = *std::max_element(options.m.begin(), options.m.end());
  for (const Shape shape : options.shapes) {
    NIBBLE_ASSIGN_OR_RETURN(CandidateBench bench,
                            CandidateBench::Make(options, tools, shape));
    NIBBLE_ASSIGN_OR_RETURN(const HiddenStates hidden,
                            HiddenStates::Make(DType::kBF16, max_m, shape.k,
                                               tools.timer->stream()));
    NIBBLE_ASSIGN_OR_RETURN(const W4a8Inputs inputs,
                            W4a8Inputs::Make(shape, max_m));
    DenseCandidates dense(options, tools, hidden, bench);
    NIBBLE_RETURN_IF_ERROR(dense.Allocate(DType::kBF16, shape));
    std::map<std::string_view, W4Numbers> numbers;
    std::deque<W4a8PathCandidates> paths;
    for (const W4a8Path& path : kPaths) {
      if (!options.WantsAnyOf(path.name)) continue;
      auto [entry, missing] = numbers.try_emplace(path.weights);
      if (missing) entry->second = RandomNumbers(path.weights, shape);
      paths.emplace_back(options, tools, inputs, hidden, bench, path,
                         entry->second);
      NIBBLE_RETURN_IF_ERROR(paths.back().Allocate());
    }
    for (const int64_t m : options.m) {
      std::vector<Candidate> candidates;
      dense.AddTo(m, candidates);
      for (const W4a8PathCandidates& path : paths) path.AddTo(m, candidates);
      bench.Run(m, candidates);
    }
    wrong += bench.wrong();
  }
  return wrong;
}

}  // namespace nibble::bench
