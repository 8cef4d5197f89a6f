#include "bench/gpu_quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/status.h"
#include "bench/gpu_check.h"
#include "bench/gpu_probes.h"
#include "bench/gpu_rows.h"
#include "bench/gpu_timing.h"
#include "kernels/cuda/quantize/quantize.h"
#include "kernels/cuda/quantize/row_shape.h"
#include "kernels/reference/half.h"
#include "kernels/reference/quantize.h"

namespace nibble::bench {
namespace {

using kernels::DType;
using kernels::Fp8;
using kernels::Int8Range;
using kernels::cuda::DeviceBuffer;
using kernels::cuda::QuantizeArgs;
using kernels::cuda::QuantizeCode;
using kernels::cuda::QuantizeOp;

// Copies of the operands, so that a graph finds none of them in the L2.
constexpr int64_t kRotationBytes = int64_t{256} << 20;
constexpr int64_t kMaxCopies = 256;
constexpr int64_t kAlignment = 256;
// Uniform values; of their products the greatest is some 4 times the root mean
// square: INT8's step / sqrt(12) is 1% of that at most, half a unit in the last
// place of E4M3 2.6%.
constexpr double kMaxInt8Error = 0.015;
constexpr double kMaxFp8Error = 0.035;
constexpr float kEps = 1e-5f;
constexpr float kGivenScale = 4.0f / 448;

struct Operation {
  const char* name;
  QuantizeOp op;
  int64_t k;    // of an 8B model: the hidden size, or that of the feed-forward
  int inputs;   // [m, k] read
  int outputs;  // [m, k] of 16 bits written
};
constexpr std::array<Operation, 4> kOperations = {
    {{"quant_norm", QuantizeOp::kNorm, 4096, 1, 0},
     {"quant_add_norm", QuantizeOp::kAddNorm, 4096, 2, 1},
     {"quant_plain", QuantizeOp::kPlain, 4096, 1, 0},
     {"quant_silu_mul", QuantizeOp::kSiluMul, 14336, 2, 0}}};

struct Encoding {
  const char* name;
  QuantizeCode code;
  Int8Range range = Int8Range::kSymmetric;
};
constexpr std::array<Encoding, 6> kEncodings = {
    {{"int8_row", QuantizeCode::kInt8Token},
     {"int8_asym", QuantizeCode::kInt8Token, Int8Range::kAsymmetric},
     {"e4m3_row", QuantizeCode::kFp8Token},
     {"e4m3_given", QuantizeCode::kFp8Tensor},
     {"e4m3_block", QuantizeCode::kFp8Block},
     {"q8_32", QuantizeCode::kQ8}}};

// Where the parts of one copy of the operands lie, bytes from its start.
struct Places {
  int64_t x = 0, other = 0, codes = 0, scales = 0, zeros = 0, bytes = 0;
};

Places PlacesOf(int64_t m, int64_t k) {
  Places places;
  const auto take = [&places](int64_t bytes) {
    const int64_t at = places.bytes;
    places.bytes += RoundUp(bytes, kAlignment);
    return at;
  };
  places.x = take(2 * m * k);
  places.other = take(2 * m * k);  // up, or the residual
  places.codes = take(m * k);
  places.scales = take(8 * (m + 4) * DivideUp<int64_t>(k, 32));
  places.zeros = take(4 * m);
  return places;
}

int64_t ScaleBytes(const Encoding& encoding, int64_t m, int64_t k) {
  switch (encoding.code) {
    case QuantizeCode::kInt8Token:
      return encoding.range == Int8Range::kSymmetric ? 4 * m : 8 * m;
    case QuantizeCode::kFp8Block:
      return 4 * m * DivideUp(k, kernels::kScaleBlock);
    case QuantizeCode::kQ8:
      return 8 * m * DivideUp(k, kernels::kSumBlock);
    default:
      return 4 * m;
  }
}

template <typename T>
std::vector<T> FromDevice(const std::byte* from, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  NIBBLE_CUDA_CHECK(cudaMemcpy(values.data(), from, count * sizeof(T),
                               cudaMemcpyDeviceToHost));
  return values;
}

// One operation at one number of rows. Owned by SweepQuantize.
class OperationSweep final {
 public:
  OperationSweep(const SweepOptions& options, const SweepTools& tools,
                 const Operation& operation, int64_t m)
      : options_(options), tools_(tools), operation_(operation), m_(m) {}

  absl::Status Allocate();
  void Run(const Encoding& encoding);
  int wrong() const { return wrong_; }

 private:
  QuantizeArgs ArgsOf(const Encoding& encoding, int64_t node) const;
  // The values of a row that are encoded, FP64, from the operands as they are.
  std::vector<double> RowValues(int64_t row) const;
  double RowError(const Encoding& encoding, const QuantizeArgs& args,
                  int64_t row, const std::vector<double>& values) const;
  double Error(const Encoding& encoding) const;
  void Time(const Encoding& encoding, int shape, double error);

  const SweepOptions& options_;
  const SweepTools& tools_;
  const Operation operation_;
  const int64_t m_;
  Places places_;
  int64_t copies_ = 0;
  DeviceBuffer operands_;
  DeviceBuffer weight_;
  DeviceBuffer given_;
  std::vector<float> host_weight_;
  int wrong_ = 0;
};

absl::Status OperationSweep::Allocate() {
  const int64_t k = operation_.k;
  const cudaStream_t stream = tools_.timer->stream().get();
  places_ = PlacesOf(m_, k);
  copies_ = std::clamp(DivideUp(kRotationBytes, places_.bytes), int64_t{2},
                       kMaxCopies);
  NIBBLE_ASSIGN_OR_RETURN(operands_,
                          DeviceBuffer::Make(copies_ * places_.bytes));
  NIBBLE_ASSIGN_OR_RETURN(weight_, DeviceBuffer::Make(4 * k));
  NIBBLE_ASSIGN_OR_RETURN(given_, DeviceBuffer::Make(4));
  for (int64_t copy = 0; copy < copies_; ++copy) {
    std::byte* at = operands_.data() + copy * places_.bytes;
    const auto seed = static_cast<uint64_t>(10 * copy);
    LaunchFillUniform(options_.x_dtype, at + places_.x, m_ * k, {-4, 4},
                      seed + 1, stream);
    LaunchFillUniform(options_.x_dtype, at + places_.other, m_ * k, {-1, 1},
                      seed + 2, stream);
  }
  host_weight_.resize(k);
  for (int64_t i = 0; i < k; ++i) {
    host_weight_[i] = 0.5f + static_cast<float>(i * 37 % 101) / 101;
  }
  NIBBLE_CUDA_CHECK(cudaMemcpyAsync(weight_.data(), host_weight_.data(), 4 * k,
                                    cudaMemcpyHostToDevice, stream));
  NIBBLE_CUDA_CHECK(cudaMemcpyAsync(given_.data(), &kGivenScale, 4,
                                    cudaMemcpyHostToDevice, stream));
  tools_.timer->stream().Synchronize();
  return absl::OkStatus();
}

QuantizeArgs OperationSweep::ArgsOf(const Encoding& encoding,
                                    int64_t node) const {
  std::byte* at = operands_.data() + node % copies_ * places_.bytes;
  const QuantizeOp op = operation_.op;
  const bool norm = op == QuantizeOp::kNorm || op == QuantizeOp::kAddNorm;
  QuantizeArgs args{.op = op,
                    .dtype = options_.x_dtype,
                    .x = at + places_.x,
                    .ldx = operation_.k,
                    .m = m_,
                    .k = operation_.k,
                    .code = encoding.code,
                    .range = encoding.range,
                    .codes = at + places_.codes,
                    .ldc = operation_.k,
                    .scales = reinterpret_cast<float*>(at + places_.scales)};
  if (op == QuantizeOp::kSiluMul) args.up = at + places_.other;
  if (op == QuantizeOp::kAddNorm) {
    args.residual = at + places_.other;
    args.ldr = operation_.k;
  }
  if (norm) {
    args.weight = weight_.as<float>();
    args.eps = kEps;
  }
  if (encoding.code == QuantizeCode::kFp8Tensor) {
    args.scales = given_.as<float>();
  }
  if (encoding.range == Int8Range::kAsymmetric) {
    args.zeros = reinterpret_cast<int32_t*>(at + places_.zeros);
  }
  return args;
}

std::vector<double> OperationSweep::RowValues(int64_t row) const {
  const int64_t k = operation_.k;
  const auto read = [&](int64_t place) {
    std::vector<double> values;
    for (const uint16_t bits :
         FromDevice<uint16_t>(operands_.data() + place + 2 * row * k, k)) {
      values.push_back(options_.x_dtype == DType::kF16
                           ? kernels::reference::HalfToFloat(bits)
                           : kernels::reference::BFloat16ToFloat(bits));
    }
    return values;
  };
  // After kAddNorm the residual is what was normed.
  std::vector<double> x =
      read(operation_.op == QuantizeOp::kAddNorm ? places_.other : places_.x);
  if (operation_.op == QuantizeOp::kPlain) return x;
  if (operation_.op == QuantizeOp::kSiluMul) {
    const std::vector<double> up = read(places_.other);
    for (int64_t i = 0; i < k; ++i) x[i] *= up[i] / (1 + std::exp(-x[i]));
    return x;
  }
  double squares = 0;
  for (const double value : x) squares += value * value;
  const double factor =
      1 / std::sqrt(squares / static_cast<double>(k) + double{kEps});
  for (int64_t i = 0; i < k; ++i) x[i] *= factor * host_weight_[i];
  return x;
}

double OperationSweep::RowError(const Encoding& encoding,
                                const QuantizeArgs& args, int64_t row,
                                const std::vector<double>& values) const {
  const int64_t k = operation_.k;
  const auto codes = FromDevice<uint8_t>(
      static_cast<const std::byte*>(args.codes) + row * args.ldc, k);
  const auto scale_at = [&](int64_t index) {
    return FromDevice<float>(
        reinterpret_cast<const std::byte*>(args.scales + index), 1)[0];
  };
  std::vector<float> scales;
  int64_t group = k;  // columns that share one
  int32_t zero = 0;
  switch (encoding.code) {
    case QuantizeCode::kInt8Token:
      if (args.zeros != nullptr) {
        zero = FromDevice<int32_t>(
            reinterpret_cast<const std::byte*>(args.zeros + row), 1)[0];
      }
      [[fallthrough]];
    case QuantizeCode::kFp8Token:
      scales = {scale_at(row)};
      break;
    case QuantizeCode::kFp8Tensor:
      scales = {kGivenScale};
      break;
    case QuantizeCode::kFp8Block:
      group = kernels::kScaleBlock;
      for (int64_t i = 0; i < k / group; ++i) {
        scales.push_back(scale_at(i * kernels::BlockScalePitch(m_) + row));
      }
      break;
    case QuantizeCode::kQ8:
      group = kernels::kSumBlock;
      for (int64_t i = 0; i < k / group; ++i) {
        scales.push_back(scale_at(2 * (row * (k / group) + i)));
      }
      break;
  }
  const bool integer = encoding.code == QuantizeCode::kInt8Token ||
                       encoding.code == QuantizeCode::kQ8;
  ErrorSum error;
  for (int64_t i = 0; i < k; ++i) {
    const double number =
        integer ? static_cast<int8_t>(codes[i]) - zero
                : kernels::reference::Fp8ToFloat(codes[i], Fp8::kE4m3);
    error.Add(number * scales[i / group], values[i]);
  }
  return error.Relative();
}

double OperationSweep::Error(const Encoding& encoding) const {
  const QuantizeArgs args = ArgsOf(encoding, 0);
  NIBBLE_CUDA_CHECK(cudaMemset(args.codes, 0x7f, m_ * args.ldc));
  NIBBLE_CUDA_CHECK(cudaDeviceSynchronize());
  kernels::cuda::LaunchQuantize(args, *tools_.device, tools_.timer->stream());
  tools_.timer->stream().Synchronize();
  double greatest = 0;
  for (const int64_t row : {int64_t{0}, m_ / 2, m_ - 1}) {
    const double error = RowError(encoding, args, row, RowValues(row));
    if (!(error <= greatest)) greatest = error;
  }
  return greatest;
}

void OperationSweep::Time(const Encoding& encoding, int shape, double error) {
  const GpuTimer& timer = *tools_.timer;
  const auto enqueue = [&](int64_t node, bool overlap) {
    kernels::cuda::LaunchQuantize(ArgsOf(encoding, node), *tools_.device,
                                  timer.stream(),
                                  {.overlap = overlap, .shape = shape});
  };
  const int64_t k = operation_.k;
  const kernels::cuda::RowShape& spread = kernels::cuda::kRowShapes[shape];
  Row row;
  row.path = operation_.name;
  row.format = encoding.name;
  row.m = m_;
  row.k = k;
  row.choice = absl::StrCat(
      spread.chunks, "x8 a thread, ",
      RoundUp(DivideUp(k, int64_t{8} * spread.chunks), int64_t{32}), " of ",
      spread.max_threads, " threads");
  row.rel_err = error;
  row.bytes = m_ * k * (2 * (operation_.inputs + operation_.outputs) + 1) +
              ScaleBytes(encoding, m_, k);
  row.us_cold = timer.ColdUs([&] { enqueue(0, false); });
  const auto node_us = [&](bool overlap) {
    return timer.NodeUs(row.us_cold, row.bytes,
                        [&](int64_t node) { enqueue(node, overlap); });
  };
  row.us_graph = node_us(true);
  row.us_graph_plain = node_us(false);
  const double copy = tools_.ceilings.copy_gbps;
  row.floor_us = 1e-3 * static_cast<double>(row.bytes) / copy;
  row.pct_peak = 100 * row.gbps() / copy;
  tools_.csv->Write(row);
  std::printf(
      "%-14s %-10s M %-6lld K %-6lld %8.2f us cold (%5.1f%% of copying), node "
      "%8.2f us (%5.1f%%), plain %8.2f (%5.1f%%), %5.0f GB/s, error %.2e  "
      "[%s]\n",
      operation_.name, encoding.name, static_cast<long long>(m_),
      static_cast<long long>(k), row.us_cold, row.pct_peak, row.us_graph,
      100 * row.floor_us / row.us_graph, row.us_graph_plain,
      100 * row.floor_us / row.us_graph_plain, row.gbps(), error,
      row.choice.c_str());
  std::fflush(stdout);
}

void OperationSweep::Run(const Encoding& encoding) {
  const double error = Error(encoding);
  const bool integer = encoding.code == QuantizeCode::kInt8Token ||
                       encoding.code == QuantizeCode::kQ8;
  if (!(error <= (integer ? kMaxInt8Error : kMaxFp8Error))) {
    std::printf("%-14s %-10s M %-6lld ERROR: relative error %.3g\n",
                operation_.name, encoding.name, static_cast<long long>(m_),
                error);
    ++wrong_;
    return;
  }
  if (options_.check_only) return;
  const int first = kernels::cuda::RowShapeFor(operation_.k);
  const int last = options_.every ? kernels::cuda::kNumRowShapes - 1 : first;
  for (int shape = first; shape <= last; ++shape) Time(encoding, shape, error);
}

}  // namespace

absl::StatusOr<int> SweepQuantize(const SweepOptions& options,
                                  const SweepTools& tools) {
  int wrong = 0;
  for (const Operation& operation : kOperations) {
    for (const int64_t m : options.m) {
      OperationSweep sweep(options, tools, operation, m);
      NIBBLE_RETURN_IF_ERROR(sweep.Allocate());
      for (const Encoding& encoding : kEncodings) sweep.Run(encoding);
      wrong += sweep.wrong();
    }
  }
  return wrong;
}

}  // namespace nibble::bench
