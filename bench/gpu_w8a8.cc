#include "bench/gpu_w8a8.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/gpu_candidate.h"
#include "bench/gpu_w8a8_candidates.h"
#include "kernels/cuda/linear/w8a8.h"

namespace nibble::bench {

absl::StatusOr<int> SweepW8a8(const SweepOptions& options,
                              const SweepTools& tools) {
  int wrong = 0;
  for (const Shape shape : options.shapes) {
    if (shape.n % kernels::cuda::kW8RowGroup != 0 ||
        shape.k % (4 * kernels::cuda::kW8BlockK) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(shape.n, "x", shape.k,
                       ": 8-bit weights are measured with N a multiple of 32 "
                       "and K of 512"));
    }
    NIBBLE_ASSIGN_OR_RETURN(CandidateBench bench,
                            CandidateBench::Make(options, tools, shape));
    NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<W8a8Candidates> candidates,
                            W8a8Candidates::Make(options, tools, shape, bench));
    for (const int64_t m : options.m) bench.Run(m, candidates->For(m));
    wrong += bench.wrong();
  }
  return wrong;
}

}  // namespace nibble::bench
