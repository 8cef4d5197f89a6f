// What is measured of linear layers with 8-bit weights and activations: our
// kernels and cuBLASLt's, alone and behind the norm that makes their input.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/gpu_activations.h"
#include "bench/gpu_candidate.h"
#include "bench/gpu_dense.h"
#include "bench/gpu_w8a8_operands.h"

namespace nibble::bench {

// A multiplication by its name in the CSV file. By value.
struct W8a8Path {
  const char* name;
  kernels::cuda::W8Kind kind;
  kernels::cuda::W8Scaling scaling;
};

// The operands of one shape and what can be computed on them. Candidates that
// it makes use it: it outlives them and stays where it is. Owned by SweepW8a8.
//
// Besides a path by itself, on codes made before, there are
//   NAME_quant    RMSNorm and quantization fused, then the multiplication
//   NAME_unfused  RMSNorm to BF16, quantization of that, the multiplication
//   NAME_norm     RMSNorm to BF16, the multiplication of codes made before:
//                 what NAME_quant would take if quantizing were free
// and of w8a8_fp8_block, where n is one of gate/up weights,
//   NAME_silu        silu(gate) * up in BF16, f = n / 2
//   NAME_silu_quant  the same as E4M3 codes with a scale for 1 x 128
// and of cuBLASLt on BF16 itself and _norm. Launches overlap where ours follow
// each other.
class W8a8Candidates final {
 public:
  static absl::StatusOr<std::unique_ptr<W8a8Candidates>> Make(
      const SweepOptions& options, const SweepTools& tools, Shape shape,
      const CandidateBench& bench);

  // What options.paths wants, the fastest way of each; with options.every or
  // check_only all ways of ours.
  std::vector<Candidate> For(int64_t m) const;

 private:
  W8a8Candidates(const SweepOptions& options, const SweepTools& tools,
                 Shape shape, const CandidateBench& bench)
      : options_(options), tools_(tools), shape_(shape), bench_(bench) {}
  absl::Status Allocate();

  const CodedOperands& Operands(const W8a8Path& path) const;

  void AddPeer(const W8a8Path& path, int64_t m,
               std::vector<Candidate>& to) const;
  void AddInt8Peer(int64_t m, std::vector<Candidate>& to) const;
  void AddOurs(const W8a8Path& path, int64_t m,
               std::vector<Candidate>& to) const;
  // The ways of every device's kernel: NAME_mma.
  void AddPortable(const W8a8Path& path, int64_t m,
                   std::vector<Candidate>& to) const;
  // The fastest of `ways`, whose number is returned; with options.every or
  // check_only all of them. There must be one.
  size_t AddFastest(const std::vector<Candidate>& ways,
                    std::vector<Candidate>& to) const;
  void AddSiluMul(const W8a8Path& path, int64_t m,
                  std::vector<Candidate>& to) const;
  Candidate SiluMul(const W8a8Path& path, int64_t m,
                    const kernels::LaunchSpec& spec, bool quantized) const;
  // What `path` computes from codes made before, without a way to do it.
  Candidate OfCodes(const W8a8Path& path, int64_t m, bool packed) const;
  Candidate Ours(const W8a8Path& path, int64_t m,
                 const kernels::LaunchSpec& spec) const;
  void AddBehindNorm(const W8a8Path& path, int64_t m,
                     const kernels::LaunchSpec& spec, const Candidate& alone,
                     std::vector<Candidate>& to) const;
  Candidate Quantized(const W8a8Path& path, int64_t m,
                      const kernels::LaunchSpec& spec) const;
  // Of x as quantization writes it.
  kernels::cuda::W8Args QuantizedArgs(const W8a8Path& path, int64_t m,
                                      int64_t node) const;

  const SweepOptions& options_;
  const SweepTools& tools_;
  const Shape shape_;
  const CandidateBench& bench_;
  std::optional<CodedOperands> int8_, e4m3_;
  HiddenStates hidden_;
  DenseCandidates dense_{options_, tools_, hidden_, bench_};
};

}  // namespace nibble::bench
