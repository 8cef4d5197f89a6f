#include "bench/gpu_w8a8_candidates.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/gpu_check.h"
#include "kernels/activation_codes.h"
#include "kernels/cuda/linear/w8a8.h"
#include "kernels/cuda/linear/w8a8_plan.h"
#include "kernels/reference/minifloat.h"

namespace nibble::bench {

using kernels::DType;
using kernels::LaunchSpec;
using kernels::cuda::CublasLtFp8;
using kernels::cuda::CublasLtProblem;
using kernels::cuda::QuantizeCode;
using kernels::cuda::W8Args;
using kernels::cuda::W8Config;
using kernels::cuda::W8Kind;
using kernels::cuda::W8PackedRow;
using kernels::cuda::W8Result;
using kernels::cuda::W8Scaling;
using kernels::reference::CodedMatrix;
using kernels::reference::CodeType;

namespace {

// The relative error that FP8 sums in the tensor cores may have.
constexpr double kMaxFastError = 6e-3;

constexpr W8a8Path kOurs[] = {
    {"w8a8_int8_row", W8Kind::kInt8, W8Scaling::kRow},
    {"w8a8_int8_group", W8Kind::kInt8Group, W8Scaling::kGroup},
    {"w8a8_fp8_row", W8Kind::kE4m3, W8Scaling::kRow},
    {"w8a8_fp8_row_fast", W8Kind::kE4m3Fast, W8Scaling::kRow},
    {"w8a8_fp8_tensor", W8Kind::kE4m3, W8Scaling::kTensor},
    {"w8a8_fp8_block", W8Kind::kE4m3Block, W8Scaling::kBlock},
};
constexpr W8a8Path kPeers[] = {
    {"cublas_fp8_tensor", W8Kind::kE4m3, W8Scaling::kTensor},
    {"cublas_fp8_tensor_fast", W8Kind::kE4m3Fast, W8Scaling::kTensor},
    {"cublas_fp8_row", W8Kind::kE4m3, W8Scaling::kRow},
    {"cublas_fp8_row_fast", W8Kind::kE4m3Fast, W8Scaling::kRow},
    {"cublas_fp8_block", W8Kind::kE4m3Block, W8Scaling::kBlock},
};

bool IsInt8(const W8a8Path& path) { return kernels::cuda::IsInt8(path.kind); }

// What quantizes activations for a path; none where the scale is not theirs.
std::optional<QuantizeCode> CodeOf(const W8a8Path& path) {
  switch (path.scaling) {
    case W8Scaling::kRow:
    case W8Scaling::kGroup:
      return IsInt8(path) ? QuantizeCode::kInt8Token : QuantizeCode::kFp8Token;
    case W8Scaling::kBlock:
      return QuantizeCode::kFp8Block;
    case W8Scaling::kTensor:
      break;
  }
  return std::nullopt;
}

std::vector<float> Dequantized(const CodedMatrix& w, int64_t row) {
  std::vector<float> values(w.k);
  const auto codes = w.Row(row);
  for (int64_t i = 0; i < w.k; ++i) {
    const float code = w.type == CodeType::kInt8
                           ? static_cast<int8_t>(codes[i])
                           : kernels::reference::E4m3ToFloat(codes[i]);
    values[i] = code * w.grid.At(row, i);
  }
  return values;
}

}  // namespace

absl::StatusOr<std::unique_ptr<W8a8Candidates>> W8a8Candidates::Make(
    const SweepOptions& options, const SweepTools& tools, Shape shape,
    const CandidateBench& bench) {
  std::unique_ptr<W8a8Candidates> made(
      new W8a8Candidates(options, tools, shape, bench));
  NIBBLE_RETURN_IF_ERROR(made->Allocate());
  return made;
}

absl::Status W8a8Candidates::Allocate() {
  const kernels::cuda::Stream& stream = tools_.timer->stream();
  const int64_t max_m = *std::max_element(options_.m.begin(), options_.m.end());
  NIBBLE_ASSIGN_OR_RETURN(
      int8_, CodedOperands::Make(CodeType::kInt8, shape_, max_m, stream));
  NIBBLE_ASSIGN_OR_RETURN(
      e4m3_, CodedOperands::Make(CodeType::kE4m3, shape_, max_m, stream));
  NIBBLE_ASSIGN_OR_RETURN(
      hidden_, HiddenStates::Make(DType::kBF16, max_m, shape_.k, stream));
  return dense_.Allocate(DType::kBF16, shape_);
}

const CodedOperands& W8a8Candidates::Operands(const W8a8Path& path) const {
  return IsInt8(path) ? *int8_ : *e4m3_;
}

Candidate W8a8Candidates::OfCodes(const W8a8Path& path, int64_t m,
                                  bool packed) const {
  const CodedOperands& operands = Operands(path);
  Candidate candidate{
      .path = path.name,
      .format = IsInt8(path) ? "int8" : "e4m3",
      .max_error =
          path.kind == W8Kind::kE4m3Fast ? kMaxFastError : kMaxRelativeError,
      .weights = operands.rotation(),
      .bytes = operands.rotation().bytes + m * shape_.k + 2 * m * shape_.n,
      .rate = kEightBitRate};
  candidate.reference = [&operands, path, m, packed](int64_t row,
                                                     int64_t column) {
    return DotOfCodes(operands.X(path.scaling, m), row,
                      operands.W(path.scaling, packed),
                      packed ? W8PackedRow(column) : column)
        .value;
  };
  return candidate;
}

Candidate W8a8Candidates::Ours(const W8a8Path& path, int64_t m,
                               const LaunchSpec& spec) const {
  Candidate candidate = OfCodes(path, m, true);
  candidate.choice = spec.ToString();
  candidate.enqueue = [this, path, m, spec](Turn turn) {
    W8Args args = Operands(path).Args(path.kind, path.scaling, m, turn.node);
    args.y = bench_.y();
    LaunchW8(args, spec, *tools_.device, tools_.timer->stream().get(),
             {.overlap = turn.overlap});
  };
  return candidate;
}

W8Args W8a8Candidates::QuantizedArgs(const W8a8Path& path, int64_t m,
                                     int64_t node) const {
  W8Args args = Operands(path).Args(path.kind, path.scaling, m, node);
  args.x.codes = hidden_.codes();
  args.x.scales = hidden_.scales();
  args.x.scales_pitch = kernels::BlockScalePitch(m);
  args.y = bench_.y();
  return args;
}

Candidate W8a8Candidates::Quantized(const W8a8Path& path, int64_t m,
                                    const LaunchSpec& spec) const {
  const CodedOperands& operands = Operands(path);
  Candidate candidate = Ours(path, m, spec);
  candidate.bytes += m * shape_.k;  // hidden states have 16 bits
  candidate.max_error = IsInt8(path) ? kMaxInt8QuantError : kMaxFp8QuantError;
  candidate.reference = [this, &operands, path](int64_t row, int64_t column) {
    const std::vector<float> w =
        Dequantized(operands.W(path.scaling, true), W8PackedRow(column));
    return Dot(hidden_.NormedRow(row), w.data());
  };
  return candidate;
}

void W8a8Candidates::AddBehindNorm(const W8a8Path& path, int64_t m,
                                   const LaunchSpec& spec,
                                   const Candidate& alone,
                                   std::vector<Candidate>& to) const {
  const std::optional<QuantizeCode> code = CodeOf(path);
  if (!code.has_value()) return;
  const auto multiply = [this, path, m, spec](Turn turn) {
    LaunchW8(QuantizedArgs(path, m, turn.node), spec, *tools_.device,
             tools_.timer->stream().get(), {.overlap = true});
  };
  Candidate quant = Quantized(path, m, spec);
  quant.path = absl::StrCat(path.name, "_quant");
  quant.behind_norm = true;
  quant.enqueue = [this, m, code, multiply](Turn turn) {
    hidden_.NormAndQuantize(*code, m, turn.overlap, *tools_.device,
                            tools_.timer->stream());
    multiply(turn);
  };
  Candidate unfused = quant;
  unfused.path = absl::StrCat(path.name, "_unfused");
  unfused.enqueue = [this, m, code, multiply](Turn turn) {
    hidden_.Norm(m, turn.overlap, tools_.timer->stream());
    hidden_.Quantize(*code, m, true, *tools_.device, tools_.timer->stream());
    multiply(turn);
  };
  Candidate norm = alone;
  norm.path = absl::StrCat(path.name, "_norm");
  norm.behind_norm = true;
  norm.bytes = quant.bytes;
  norm.enqueue = [this, m, enqueue = alone.enqueue](Turn turn) {
    hidden_.Norm(m, turn.overlap, tools_.timer->stream());
    enqueue({.node = turn.node, .overlap = true});
  };
  AddWanted(options_, std::move(quant), to);
  AddWanted(options_, std::move(unfused), to);
  AddWanted(options_, std::move(norm), to);
}

size_t W8a8Candidates::AddFastest(const std::vector<Candidate>& ways,
                                  std::vector<Candidate>& to) const {
  const size_t fastest = options_.check_only ? 0 : bench_.Fastest(ways);
  const bool all = options_.check_only || options_.every;
  for (size_t i = 0; i < ways.size(); ++i) {
    if (all || i == fastest) AddWanted(options_, ways[i], to);
  }
  return fastest;
}

void W8a8Candidates::AddOurs(const W8a8Path& path, int64_t m,
                             std::vector<Candidate>& to) const {
  if (!options_.WantsAnyOf(path.name)) return;
  const std::vector<LaunchSpec> specs =
      W8Candidates({path.kind, m, shape_.n, shape_.k}, *tools_.device);
  if (specs.empty()) return;
  std::vector<Candidate> ways;
  ways.reserve(specs.size());
  for (const LaunchSpec& spec : specs) ways.push_back(Ours(path, m, spec));
  const size_t fastest = AddFastest(ways, to);
  AddBehindNorm(path, m, specs[fastest], ways[fastest], to);
  if (options_.portable) AddPortable(path, m, to);
  AddSiluMul(path, m, to);
}

void W8a8Candidates::AddPortable(const W8a8Path& path, int64_t m,
                                 std::vector<Candidate>& to) const {
  std::vector<Candidate> ways;
  for (const W8Config& config :
       W8Configs({path.kind, m, shape_.n, shape_.k}, *tools_.device,
                 kernels::cuda::kW8MmaTiles)) {
    ways.push_back(Ours(path, m, W8Spec(path.kind, config)));
    ways.back().path = absl::StrCat(path.name, "_mma");
  }
  AddFastest(ways, to);
}

Candidate W8a8Candidates::SiluMul(const W8a8Path& path, int64_t m,
                                  const LaunchSpec& spec,
                                  bool quantized) const {
  constexpr int64_t kBlock = kernels::kScaleBlock;
  const int64_t f = shape_.n / 2;
  const int64_t pitch = kernels::BlockScalePitch(m);
  const int64_t scales_at = m * f;  // behind the codes
  Candidate candidate = OfCodes(path, m, true);
  candidate.path = absl::StrCat(path.name, quantized ? "_silu_quant" : "_silu");
  candidate.choice = spec.ToString();
  candidate.y_columns = f;
  candidate.bytes = candidate.weights.bytes + m * shape_.k +
                    (quantized ? m * f + f / kBlock * m * 4 : 2 * m * f);
  candidate.reference = [product = candidate.reference](int64_t row,
                                                        int64_t column) {
    const int64_t at = column / kBlock * 2 * kBlock + column % kBlock;
    const double gate = product(row, at);
    return gate / (1 + std::exp(-gate)) * product(row, at + kBlock);
  };
  if (quantized) {
    candidate.max_error = kMaxFp8QuantError;
    candidate.decode = [f, pitch, scales_at](const std::byte* y, int64_t at) {
      float scale;
      std::memcpy(&scale,
                  y + scales_at + (at % f / kBlock * pitch + at / f) * 4, 4);
      return scale *
             kernels::reference::E4m3ToFloat(std::to_integer<uint8_t>(y[at]));
    };
  }
  candidate.enqueue = [this, path, m, spec, quantized, f, pitch,
                       scales_at](Turn turn) {
    W8Args args = Operands(path).Args(path.kind, path.scaling, m, turn.node);
    auto* const y = static_cast<std::byte*>(bench_.y());
    args.y = y;
    args.ldy = f;
    args.silu_mul = {
        .f = f,
        .result = quantized ? W8Result::kE4m3Block : W8Result::kNumbers,
        .scales = reinterpret_cast<float*>(y + scales_at),
        .scales_pitch = pitch};
    LaunchW8(args, spec, *tools_.device, tools_.timer->stream().get(),
             {.overlap = turn.overlap});
  };
  return candidate;
}

void W8a8Candidates::AddSiluMul(const W8a8Path& path, int64_t m,
                                std::vector<Candidate>& to) const {
  if (path.scaling != W8Scaling::kBlock) return;
  if (shape_.n % (2 * kernels::cuda::kW8GateUpUnit) != 0) return;
  const std::vector<LaunchSpec> specs =
      W8SiluMulCandidates({path.kind, m, shape_.n, shape_.k}, *tools_.device);
  const bool all = options_.check_only || options_.every;
  for (const bool quantized : {false, true}) {
    std::vector<Candidate> ways;
    for (const LaunchSpec& spec : specs) {
      ways.push_back(SiluMul(path, m, spec, quantized));
    }
    if (ways.empty() || !options_.Wants(ways[0].path)) continue;
    const size_t fastest = all ? 0 : bench_.Fastest(ways);
    for (size_t i = 0; i < ways.size(); ++i) {
      if (all || i == fastest) to.push_back(ways[i]);
    }
  }
}

void W8a8Candidates::AddPeer(const W8a8Path& path, int64_t m,
                             std::vector<Candidate>& to) const {
  if (!options_.Wants(path.name)) return;
  const CodedOperands& operands = Operands(path);
  CublasLtFp8 fp8{.x_scales = operands.XScales(path.scaling),
                  .w_scales = operands.WScales(path.scaling)};
  if (path.kind == W8Kind::kE4m3Fast) fp8.sums = CublasLtFp8::Sums::kFast;
  if (path.scaling == W8Scaling::kRow) fp8.scales = CublasLtFp8::Scales::kRow;
  if (path.scaling == W8Scaling::kBlock) {
    fp8.scales = CublasLtFp8::Scales::kBlock;
    // It reads rows of scales that begin at multiples of 16 bytes.
    if (m % 4 != 0) return;
  }
  Candidate candidate = OfCodes(path, m, false);
  auto choice = ChooseCublas(tools_, bench_, candidate,
                             {.m = m, .n = shape_.n, .k = shape_.k, .fp8 = fp8},
                             operands.x());
  if (choice == nullptr) return;
  RunByCublas(std::move(choice), tools_, bench_, operands.x(), candidate);
  to.push_back(std::move(candidate));
}

void W8a8Candidates::AddInt8Peer(int64_t m, std::vector<Candidate>& to) const {
  const W8a8Path path{"cublas_int8", W8Kind::kInt8, W8Scaling::kTensor};
  if (!options_.Wants(path.name)) return;
  Candidate integers = OfCodes(path, m, false);
  integers.bytes += 2 * m * shape_.n;  // INT32
  integers.reference = [this, path, m](int64_t row, int64_t column) {
    static constexpr float kOne[] = {1};
    CodedMatrix x = int8_->X(path.scaling, m);
    CodedMatrix w = int8_->W(path.scaling, false);
    x.grid = w.grid = {.scales = kOne};
    return DotOfCodes(x, row, w, column).value;
  };
  integers.y_dtype = DType::kI32;
  auto choice = ChooseCublas(tools_, bench_, integers,
                             {.m = m,
                              .n = shape_.n,
                              .k = shape_.k,
                              .input = DType::kI8,
                              .output = DType::kI32},
                             int8_->x());
  if (choice == nullptr) return;
  RunByCublas(std::move(choice), tools_, bench_, int8_->x(), integers);
  to.push_back(std::move(integers));
}

std::vector<Candidate> W8a8Candidates::For(int64_t m) const {
  std::vector<Candidate> candidates;
  dense_.AddTo(m, candidates);
  if (tools_.cublas != nullptr && !options_.check_only) {
    AddInt8Peer(m, candidates);
    for (const W8a8Path& path : kPeers) AddPeer(path, m, candidates);
  }
  for (const W8a8Path& path : kOurs) AddOurs(path, m, candidates);
  return candidates;
}

}  // namespace nibble::bench
