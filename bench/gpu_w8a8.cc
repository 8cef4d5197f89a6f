#include "bench/gpu_w8a8.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/gpu_check.h"
#include "bench/gpu_choice.h"
#include "bench/gpu_w8a8_operands.h"
#include "kernels/cuda/linear/w8a8.h"
#include "kernels/reference/half.h"

namespace nibble::bench {
namespace {

using kernels::DType;
using kernels::LaunchSpec;
using kernels::cuda::CublasLtFp8;
using kernels::cuda::CublasLtProblem;
using kernels::cuda::DeviceBuffer;
using kernels::cuda::PinnedBuffer;
using kernels::cuda::W8Args;
using kernels::cuda::W8Kind;
using kernels::cuda::W8PackedRow;
using kernels::cuda::W8Scaling;
using kernels::reference::CodedMatrix;
using kernels::reference::CodeType;

// The matrix units do twice as many 8-bit products as 16-bit ones.
constexpr double kEightBitRate = 2;
constexpr int kTrials = 5;
// In which the power limit forgets what ran before.
constexpr std::chrono::milliseconds kRest(20);

// Of results rounded to BF16, and of FP8 sums in the tensor cores.
constexpr double kMaxRelativeError = 3e-3;
constexpr double kMaxFastError = 6e-3;

// What a kernel or a library computes, by its name in the CSV file.
struct Path {
  const char* name;
  W8Kind kind;
  W8Scaling scaling;
};
constexpr Path kOurs[] = {
    {"w8a8_int8_row", W8Kind::kInt8, W8Scaling::kRow},
    {"w8a8_fp8_row", W8Kind::kE4m3, W8Scaling::kRow},
    {"w8a8_fp8_row_fast", W8Kind::kE4m3Fast, W8Scaling::kRow},
    {"w8a8_fp8_tensor", W8Kind::kE4m3, W8Scaling::kTensor},
    {"w8a8_fp8_block", W8Kind::kE4m3Block, W8Scaling::kBlock},
};
constexpr Path kPeers[] = {
    {"cublas_fp8_tensor", W8Kind::kE4m3, W8Scaling::kTensor},
    {"cublas_fp8_tensor_fast", W8Kind::kE4m3Fast, W8Scaling::kTensor},
    {"cublas_fp8_row", W8Kind::kE4m3, W8Scaling::kRow},
    {"cublas_fp8_row_fast", W8Kind::kE4m3Fast, W8Scaling::kRow},
    {"cublas_fp8_block", W8Kind::kE4m3Block, W8Scaling::kBlock},
};

// One way to compute y, ready to be checked and timed.
struct Candidate {
  Path path;
  std::string choice;
  std::function<void(int64_t node, bool overlap)> enqueue;
  bool ours = true;       // packed rows of W, and launches may overlap
  bool integers = false;  // y is INT32 and without scales
};

// One shape and type of codes: what is computed on it. Owned by SweepW8a8.
class CodedSweep final {
 public:
  CodedSweep(const SweepOptions& options, const SweepTools& tools, Shape shape,
             CodeType type)
      : options_(options), tools_(tools), shape_(shape), type_(type) {}

  absl::Status Allocate();
  void RunAll(const std::map<int64_t, double>& bf16_us);
  int wrong() const { return wrong_; }

 private:
  // What is to be measured for m rows.
  std::vector<Candidate> Candidates(int64_t m);
  std::vector<Candidate> Ours(const Path& path, int64_t m) const;
  std::optional<Candidate> Fp8Peer(const Path& path, int64_t m) const;
  std::optional<Candidate> Int8Peer(int64_t m) const;
  std::optional<Candidate> Peer(const Path& path,
                                const CublasLtProblem& problem) const;
  // Microseconds of each with a cold L2: medians of `rounds` in which they take
  // turns, so that none has the clocks that another one left behind.
  std::vector<double> ColdUs(const std::vector<Candidate>& candidates,
                             int rounds) const;
  double Check(const Candidate& candidate, int64_t m);
  double Result(const Candidate& candidate, int64_t at) const;
  Row Checked(const Candidate& candidate, int64_t m);
  void TimeNodes(const Candidate& candidate, Row& row) const;
  cudaStream_t stream() const { return tools_.timer->stream().get(); }

  const SweepOptions& options_;
  const SweepTools& tools_;
  const Shape shape_;
  const CodeType type_;
  std::optional<CodedOperands> operands_;
  DeviceBuffer y_;
  PinnedBuffer host_;
  std::map<int64_t, double> bf16_us_;
  int wrong_ = 0;
};

absl::Status CodedSweep::Allocate() {
  const int64_t max_m = *std::max_element(options_.m.begin(), options_.m.end());
  NIBBLE_ASSIGN_OR_RETURN(
      operands_,
      CodedOperands::Make(type_, shape_, max_m, tools_.timer->stream()));
  const int64_t bytes = max_m * shape_.n * 4;  // INT32 results are as large
  NIBBLE_ASSIGN_OR_RETURN(y_, DeviceBuffer::Make(bytes));
  NIBBLE_ASSIGN_OR_RETURN(host_, PinnedBuffer::Make(bytes));
  return absl::OkStatus();
}

double CodedSweep::Result(const Candidate& candidate, int64_t at) const {
  if (candidate.integers) return host_.as<int32_t>()[at];
  return kernels::reference::BFloat16ToFloat(host_.as<uint16_t>()[at]);
}

double CodedSweep::Check(const Candidate& candidate, int64_t m) {
  constexpr int kRandomOutputs = 500;
  constexpr int kNanBytes = 0xff;  // a NaN as BF16
  const int64_t count = m * shape_.n;
  const int64_t bytes = count * (candidate.integers ? 4 : 2);
  NIBBLE_CUDA_CHECK(cudaMemsetAsync(y_.data(), kNanBytes, bytes, stream()));
  candidate.enqueue(0, false);
  NIBBLE_CUDA_CHECK(cudaMemcpyAsync(host_.data(), y_.data(), bytes,
                                    cudaMemcpyDeviceToHost, stream()));
  tools_.timer->stream().Synchronize();
  std::atomic<bool> nan = false;
  ParallelFor(m, [&](int64_t row) {
    for (int64_t n = 0; n < shape_.n; ++n) {
      if (std::isnan(Result(candidate, row * shape_.n + n))) nan = true;
    }
  });
  if (nan) return std::numeric_limits<double>::quiet_NaN();
  // All of the last row and some outputs anywhere.
  std::vector<int64_t> places;
  for (int64_t n = 0; n < shape_.n; ++n) places.push_back(count - 1 - n);
  std::mt19937_64 random(static_cast<uint64_t>(m));
  for (int i = 0; i < kRandomOutputs; ++i) {
    places.push_back(static_cast<int64_t>(random() % count));
  }
  CodedMatrix x = operands_->X(candidate.path.scaling, m);
  CodedMatrix w = operands_->W(candidate.path.scaling, candidate.ours);
  const std::vector<float> one = {1};
  if (candidate.integers) x.grid = w.grid = {.scales = one};
  std::vector<double> references(places.size());
  ParallelFor(static_cast<int64_t>(places.size()), [&](int64_t i) {
    const int64_t n = places[i] % shape_.n;
    references[i] = DotOfCodes(x, places[i] / shape_.n, w,
                               candidate.ours ? W8PackedRow(n) : n)
                        .value;
  });
  ErrorSum error;
  for (size_t i = 0; i < places.size(); ++i) {
    error.Add(Result(candidate, places[i]), references[i]);
  }
  return error.Relative();
}

Row CodedSweep::Checked(const Candidate& candidate, int64_t m) {
  Row row{.path = candidate.path.name,
          .format = type_ == CodeType::kInt8 ? "int8" : "e4m3",
          .m = m,
          .n = shape_.n,
          .k = shape_.k,
          .choice = candidate.choice};
  row.rel_err = Check(candidate, m);
  row.wrong = !(row.rel_err <= (candidate.path.kind == W8Kind::kE4m3Fast
                                    ? kMaxFastError
                                    : kMaxRelativeError));
  wrong_ += row.wrong ? 1 : 0;
  row.bytes = operands_->rotation().bytes + m * shape_.k +
              m * shape_.n * (candidate.integers ? 4 : 2);
  const auto bf16 = bf16_us_.find(m);
  if (bf16 != bf16_us_.end()) row.bf16_us = bf16->second;
  return row;
}

void CodedSweep::TimeNodes(const Candidate& candidate, Row& row) const {
  GpuTimer& timer = *tools_.timer;
  const Rotation& rotation = operands_->rotation();
  row.floor_us = timer.ReadColdUs(rotation);
  row.us_load_node = timer.ReadNodeUs(rotation);
  const auto node_us = [&](bool overlap) {
    std::this_thread::sleep_for(kRest);
    return timer.NodeUs(row.us_cold, rotation.bytes, [&](int64_t node) {
      candidate.enqueue(node, overlap);
    });
  };
  row.us_graph_plain = node_us(false);
  row.us_graph = candidate.ours ? node_us(true) : row.us_graph_plain;
  row.pct_peak =
      100 * std::max(row.gbps() / tools_.ceilings.peak_gbps(),
                     row.tflops() / (kEightBitRate * options_.peak_tflops));
}

std::vector<double> CodedSweep::ColdUs(const std::vector<Candidate>& candidates,
                                       int rounds) const {
  std::vector<std::vector<double>> samples(candidates.size());
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < candidates.size(); ++i) {
      samples[i].push_back(
          tools_.timer->ColdUs([&] { candidates[i].enqueue(0, false); }, 1));
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& of : samples) {
    std::nth_element(of.begin(), of.begin() + rounds / 2, of.end());
    medians.push_back(of[rounds / 2]);
  }
  return medians;
}

std::vector<Candidate> CodedSweep::Ours(const Path& path, int64_t m) const {
  std::vector<Candidate> candidates;
  for (const LaunchSpec& spec :
       W8Candidates({path.kind, m, shape_.n, shape_.k}, *tools_.device)) {
    candidates.push_back(
        {.path = path,
         .choice = spec.ToString(),
         .enqueue = [this, path, m, spec](int64_t node, bool overlap) {
           W8Args args = operands_->Args(path.kind, path.scaling, m, node);
           args.y = y_.data();
           LaunchW8(args, spec, *tools_.device, stream(), {.overlap = overlap});
         }});
  }
  if (options_.check_only || options_.every || candidates.empty()) {
    return candidates;
  }
  const std::vector<double> us = ColdUs(candidates, kTrials);
  const auto fastest = std::min_element(us.begin(), us.end()) - us.begin();
  return {candidates[fastest]};
}

std::optional<Candidate> CodedSweep::Peer(
    const Path& path, const CublasLtProblem& problem) const {
  auto choice =
      FastestCublas(*tools_.timer, *tools_.cublas, problem, operands_->x(),
                    operands_->rotation().data, y_.data());
  if (!choice.ok()) {
    std::printf("%s M %lld: %s\n", path.name, static_cast<long long>(problem.m),
                choice.status().ToString().c_str());
    return std::nullopt;
  }
  // Shared by the copies of a function.
  const auto kept = std::make_shared<CublasChoice>(*std::move(choice));
  return Candidate{.path = path,
                   .choice = absl::StrCat("algorithm ", kept->algorithm, " of ",
                                          kept->matmul.algorithms()),
                   .enqueue =
                       [this, kept](int64_t node, bool /*overlap*/) {
                         RunCublas(*kept, operands_->x(),
                                   operands_->rotation().At(node), y_.data(),
                                   tools_.timer->stream());
                       },
                   .ours = false,
                   .integers = problem.output == DType::kI32};
}

std::optional<Candidate> CodedSweep::Fp8Peer(const Path& path,
                                             int64_t m) const {
  CublasLtFp8 fp8{.x_scales = operands_->XScales(path.scaling),
                  .w_scales = operands_->WScales(path.scaling)};
  if (path.kind == W8Kind::kE4m3Fast) fp8.sums = CublasLtFp8::Sums::kFast;
  if (path.scaling == W8Scaling::kRow) fp8.scales = CublasLtFp8::Scales::kRow;
  if (path.scaling == W8Scaling::kBlock) {
    fp8.scales = CublasLtFp8::Scales::kBlock;
    // It reads rows of scales that begin at multiples of 16 bytes.
    if (m % 4 != 0) return std::nullopt;
  }
  return Peer(path, {.m = m, .n = shape_.n, .k = shape_.k, .fp8 = fp8});
}

std::optional<Candidate> CodedSweep::Int8Peer(int64_t m) const {
  return Peer({"cublas_int8", W8Kind::kInt8, W8Scaling::kTensor},
              {.m = m,
               .n = shape_.n,
               .k = shape_.k,
               .input = DType::kI8,
               .output = DType::kI32});
}

std::vector<Candidate> CodedSweep::Candidates(int64_t m) {
  std::vector<Candidate> candidates;
  const auto add = [&](std::optional<Candidate> candidate) {
    if (candidate.has_value()) candidates.push_back(*std::move(candidate));
  };
  const bool int8 = type_ == CodeType::kInt8;
  if (tools_.cublas != nullptr && !options_.check_only) {
    if (int8) add(Int8Peer(m));
    for (const Path& path : kPeers) {
      if (!int8) add(Fp8Peer(path, m));
    }
  }
  for (const Path& path : kOurs) {
    if (int8 != (path.kind == W8Kind::kInt8)) continue;
    for (Candidate& candidate : Ours(path, m)) add(std::move(candidate));
  }
  return candidates;
}

void CodedSweep::RunAll(const std::map<int64_t, double>& bf16_us) {
  bf16_us_ = bf16_us;
  for (const int64_t m : options_.m) {
    const std::vector<Candidate> candidates = Candidates(m);
    std::vector<Row> rows;
    for (const Candidate& candidate : candidates) {
      rows.push_back(Checked(candidate, m));
      const Row& row = rows.back();
      if (options_.check_only) {
        std::printf("%-22s %5lldx%-5lld M %-5lld error %.1e %s  [%s]\n",
                    row.path.c_str(), static_cast<long long>(row.n),
                    static_cast<long long>(row.k),
                    static_cast<long long>(row.m), row.rel_err,
                    row.wrong ? "WRONG" : "ok", row.choice.c_str());
      }
    }
    if (options_.check_only) continue;
    std::this_thread::sleep_for(kRest);
    const std::vector<double> us = ColdUs(candidates, tools_.timer->repeats());
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].us_cold = us[i];
      if (!rows[i].wrong) TimeNodes(candidates[i], rows[i]);
      Print(rows[i]);
      tools_.csv->Write(rows[i]);
    }
  }
}

}  // namespace

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
    NIBBLE_ASSIGN_OR_RETURN(const auto bf16_us,
                            TimeCublasBf16(options, tools, shape));
    for (const CodeType type : {CodeType::kInt8, CodeType::kE4m3}) {
      CodedSweep sweep(options, tools, shape, type);
      NIBBLE_RETURN_IF_ERROR(sweep.Allocate());
      sweep.RunAll(bf16_us);
      wrong += sweep.wrong();
    }
  }
  return wrong;
}

}  // namespace nibble::bench
