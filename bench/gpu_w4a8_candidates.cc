#include "bench/gpu_w4a8_candidates.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/gpu_check.h"
#include "kernels/reference/w4a8_gemm.h"

namespace nibble::bench {

using kernels::LaunchSpec;
using kernels::cuda::DeviceBuffer;
using kernels::cuda::QuantizeCode;
using kernels::cuda::W4a8Args;
using kernels::cuda::W4a8Kind;

absl::Status W4a8PathCandidates::Allocate() {
  const int64_t max_m = *std::max_element(options_.m.begin(), options_.m.end());
  NIBBLE_ASSIGN_OR_RETURN(operand_, W4a8Operand::Make(numbers_, path_.format));
  if (!path_.format.HasMinimums()) return absl::OkStatus();
  const int64_t bytes =
      max_m * kernels::cuda::W4a8SumsPitch(path_.format, numbers_.k);
  if (path_.format.HasOffsets()) {
    NIBBLE_ASSIGN_OR_RETURN(codes_, DeviceBuffer::Make(max_m * numbers_.k));
    NIBBLE_ASSIGN_OR_RETURN(quantized_codes_,
                            DeviceBuffer::Make(max_m * numbers_.k));
  }
  NIBBLE_ASSIGN_OR_RETURN(sums_, DeviceBuffer::Make(bytes));
  NIBBLE_ASSIGN_OR_RETURN(quantized_sums_, DeviceBuffer::Make(bytes));
  Prepare(Codes(), max_m, codes_.data(), sums_.data());
  return absl::OkStatus();
}

W4a8Args W4a8PathCandidates::Args(int64_t m, int64_t node) const {
  return {.w = operand_.Weights(node),
          .x = {.codes = path_.format.HasOffsets() ? codes_.data() : Codes(),
                .pitch = numbers_.k,
                .scales = inputs_.scales(),
                .sums = sums_.data()},
          .m = m,
          .y = bench_.y(),
          .ldy = numbers_.n};
}

W4a8Args W4a8PathCandidates::QuantizedArgs(int64_t m, int64_t node) const {
  W4a8Args args = Args(m, node);
  args.x.codes = path_.format.HasOffsets()
                     ? quantized_codes_.data()
                     : static_cast<const std::byte*>(hidden_.codes());
  args.x.scales = hidden_.scales();
  args.x.sums = quantized_sums_.data();
  return args;
}

void W4a8PathCandidates::Prepare(const std::byte* codes, int64_t m,
                                 std::byte* to, std::byte* sums) const {
  LaunchW4a8Prepare({.codes = codes,
                     .pitch = numbers_.k,
                     .m = m,
                     .k = numbers_.k,
                     .to = to,
                     .sums = sums},
                    path_.format, tools_.timer->stream().get());
}

void W4a8PathCandidates::Multiply(const W4a8Args& args, const LaunchSpec& spec,
                                  bool overlap) const {
  LaunchW4a8(args, spec, *tools_.device, tools_.timer->stream().get(),
             {.overlap = overlap});
}

bool W4a8PathCandidates::IsFp8() const {
  return path_.format.kind == W4a8Kind::kE4m3;
}

bool W4a8PathCandidates::IsRerounded() const {
  return path_.format.kind == W4a8Kind::kRerounded;
}

double W4a8PathCandidates::Product(int64_t row, int64_t column) const {
  const auto k = static_cast<size_t>(numbers_.k);
  const auto groups = static_cast<size_t>(numbers_.Groups());
  const auto c = static_cast<size_t>(column);
  const kernels::reference::W4Row w{
      .codes = std::span(numbers_.codes).subspan(c * k, k),
      .scales = std::span(numbers_.scales).subspan(c * groups, groups),
      .minimums = std::span(numbers_.minimums).subspan(c * groups, groups),
      .group = numbers_.group};
  const double dot = IsFp8() ? DotOfW4A8(w, inputs_.Fp8Row(row)).value
                             : DotOfW4A8(w, inputs_.Row(row)).value;
  return inputs_.Scale(row) * dot;
}

double W4a8PathCandidates::PackedProduct(int64_t row, int64_t column) const {
  const auto x = inputs_.Row(row);
  int64_t sum = 0;
  for (int64_t i = 0; i < numbers_.k; ++i) {
    sum += int64_t{W4a8CodeAt(operand_.packed(), column, i)} * x[i];
  }
  return inputs_.Scale(row) * operand_.packed().row_scales[column] *
         static_cast<double>(sum);
}

double W4a8PathCandidates::NormedProduct(int64_t row, int64_t column) const {
  const std::vector<double> x = hidden_.NormedRow(row);
  double sum = 0;
  for (int64_t i = 0; i < numbers_.k; ++i) {
    const int64_t group = column * numbers_.Groups() + i / numbers_.group;
    sum += x[i] * (double{numbers_.scales[group]} *
                       numbers_.codes[column * numbers_.k + i] +
                   numbers_.minimums[group]);
  }
  return sum;
}

double W4a8PathCandidates::PackedNormedProduct(int64_t row,
                                               int64_t column) const {
  const std::vector<double> x = hidden_.NormedRow(row);
  double sum = 0;
  for (int64_t i = 0; i < numbers_.k; ++i) {
    sum += x[i] * W4a8CodeAt(operand_.packed(), column, i);
  }
  return sum * operand_.packed().row_scales[column];
}

Candidate W4a8PathCandidates::Alone(int64_t m, const LaunchSpec& spec) const {
  Candidate candidate{
      .path = path_.name,
      .format = path_.weights,
      .choice = spec.ToString(),
      .max_error = kMaxRelativeError,
      .weights = operand_.rotation(),
      .bytes = operand_.rotation().bytes + m * numbers_.k + 2 * m * numbers_.n,
      .rate = kEightBitRate};
  candidate.enqueue = [this, m, spec](Turn turn) {
    Multiply(Args(m, turn.node), spec, turn.overlap);
  };
  candidate.reference = [this](int64_t row, int64_t column) {
    return Product(row, column);
  };
  if (IsRerounded()) {
    candidate.ideal =
        std::exchange(candidate.reference, [this](int64_t row, int64_t column) {
          return PackedProduct(row, column);
        });
  }
  return candidate;
}

Candidate W4a8PathCandidates::WithSums(int64_t m,
                                       const LaunchSpec& spec) const {
  Candidate candidate = Alone(m, spec);
  candidate.path += "_with_sums";
  candidate.enqueue = [this, m, spec](Turn turn) {
    Prepare(Codes(), m, codes_.data(), sums_.data());
    Multiply(Args(m, turn.node), spec, turn.overlap);
  };
  return candidate;
}

Candidate W4a8PathCandidates::Quantized(int64_t m,
                                        const LaunchSpec& spec) const {
  Candidate candidate = Alone(m, spec);
  candidate.path += "_quant";
  candidate.behind_norm = true;
  candidate.bytes += m * numbers_.k;  // hidden states have 16 bits
  candidate.max_error = IsFp8() ? kMaxFp8QuantError : kMaxInt8QuantError;
  candidate.enqueue = [this, m, spec](Turn turn) {
    const W4a8Args args = QuantizedArgs(m, turn.node);
    hidden_.NormAndQuantize(
        IsFp8() ? QuantizeCode::kFp8Token : QuantizeCode::kInt8Token, m,
        turn.overlap, *tools_.device, tools_.timer->stream());
    if (path_.format.HasMinimums()) {
      Prepare(static_cast<const std::byte*>(hidden_.codes()), m,
              quantized_codes_.data(), quantized_sums_.data());
    }
    Multiply(args, spec, true);
  };
  candidate.reference = [this](int64_t row, int64_t column) {
    return NormedProduct(row, column);
  };
  if (IsRerounded()) {
    candidate.ideal =
        std::exchange(candidate.reference, [this](int64_t row, int64_t column) {
          return PackedNormedProduct(row, column);
        });
  }
  return candidate;
}

void W4a8PathCandidates::AddTo(int64_t m,
                               std::vector<Candidate>& candidates) const {
  if (!options_.WantsAnyOf(path_.name)) return;
  const std::vector<LaunchSpec> specs =
      W4a8Candidates({path_.format, m, numbers_.n, numbers_.k}, *tools_.device);
  if (specs.empty()) return;
  std::vector<Candidate> ways;
  ways.reserve(specs.size());
  for (const LaunchSpec& spec : specs) ways.push_back(Alone(m, spec));
  const bool all = options_.check_only || options_.every;
  const size_t fastest = options_.check_only ? 0 : bench_.Fastest(ways);
  for (size_t i = 0; i < ways.size(); ++i) {
    if (all || i == fastest) AddWanted(options_, ways[i], candidates);
  }
  if (path_.format.HasMinimums()) {
    AddWanted(options_, WithSums(m, specs[fastest]), candidates);
  }
  AddWanted(options_, Quantized(m, specs[fastest]), candidates);
}

}  // namespace nibble::bench
