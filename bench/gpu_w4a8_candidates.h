// What is measured of linear layers with 4-bit weights and 8-bit activations:
// our kernels, by themselves and behind the norm that makes their input.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "bench/gpu_activations.h"
#include "bench/gpu_candidate.h"
#include "bench/gpu_w4a8_operands.h"

namespace nibble::bench {

// A multiplication by its name in the CSV file. By value.
struct W4a8Path {
  const char* name;
  const char* weights;  // RandomNumbers
  kernels::cuda::W4a8Format format;
};

// One path on the weights of one shape. Besides it by itself, on codes (and
// their sums, where weights have minimums) made before, there are
//   NAME_with_sums  codes and sums as the kernel wants them, then the
//                   multiplication
//   NAME_quant      RMSNorm and quantization fused, then the same
// Candidates use it: it outlives them and stays where it is. Owned by
// SweepW4a8.
class W4a8PathCandidates final {
 public:
  // All are borrowed; `numbers` are the weights of the path.
  W4a8PathCandidates(const SweepOptions& options, const SweepTools& tools,
                     const W4a8Inputs& inputs, const HiddenStates& hidden,
                     const CandidateBench& bench, const W4a8Path& path,
                     const kernels::cuda::W4Numbers& numbers)
      : options_(options),
        tools_(tools),
        inputs_(inputs),
        hidden_(hidden),
        bench_(bench),
        path_(path),
        numbers_(numbers) {}

  absl::Status Allocate();

  // What options.paths wants, the fastest way of each; with options.every or
  // check_only all ways.
  void AddTo(int64_t m, std::vector<Candidate>& candidates) const;

 private:
  kernels::cuda::W4a8Args Args(int64_t m, int64_t node) const;
  // Of x as quantization writes it.
  kernels::cuda::W4a8Args QuantizedArgs(int64_t m, int64_t node) const;
  // Makes what Args or QuantizedArgs point at, from codes of x [m, k].
  void Prepare(const std::byte* codes, int64_t m, std::byte* to,
               std::byte* sums) const;
  bool IsFp8() const;
  const std::byte* Codes() const {
    return IsFp8() ? inputs_.fp8() : inputs_.device();
  }
  void Multiply(const kernels::cuda::W4a8Args& args,
                const kernels::LaunchSpec& spec, bool overlap) const;

  bool IsRerounded() const;
  // Of the weights as files have them, and as they are packed.
  double Product(int64_t row, int64_t column) const;
  double PackedProduct(int64_t row, int64_t column) const;
  // The same of what the norm makes.
  double NormedProduct(int64_t row, int64_t column) const;
  double PackedNormedProduct(int64_t row, int64_t column) const;

  Candidate Alone(int64_t m, const kernels::LaunchSpec& spec) const;
  Candidate WithSums(int64_t m, const kernels::LaunchSpec& spec) const;
  Candidate Quantized(int64_t m, const kernels::LaunchSpec& spec) const;

  const SweepOptions& options_;
  const SweepTools& tools_;
  const W4a8Inputs& inputs_;
  const HiddenStates& hidden_;
  const CandidateBench& bench_;
  const W4a8Path path_;
  const kernels::cuda::W4Numbers& numbers_;
  W4a8Operand operand_;
  // Of the inputs, and of what quantization writes: unsigned codes where the
  // format has them, sums where it has minimums.
  kernels::cuda::DeviceBuffer codes_, sums_;
  kernels::cuda::DeviceBuffer quantized_codes_, quantized_sums_;
};

}  // namespace nibble::bench
