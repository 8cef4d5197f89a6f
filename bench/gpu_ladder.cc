#include "bench/gpu_ladder.h"

#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status.h"
#include "bench/gpu_check.h"
#include "bench/gpu_choice.h"
#include "bench/gpu_operands.h"
#include "bench/gpu_probes.h"
#include "bench/ladder_kernels.h"
#include "kernels/cuda/linear/w4a16.h"
#include "kernels/cuda/runtime.h"
#include "kernels/reference/half.h"

namespace nibble::bench {
namespace {

using kernels::DType;
using kernels::cuda::DeviceBuffer;
using kernels::cuda::W4Args;

// FP32 sums of exact products.
constexpr double kMaxRelativeError = 1e-4;
// x in [-1, 1] rounded to steps of 1/127: an error of 1/127/sqrt(12) where the
// root mean square is 1/sqrt(3), which is 0.4%.
constexpr double kMaxQuantizedError = 1e-2;

// Rows are checked in groups as large as a tile of the packed layout.
constexpr int64_t kGroupRows = kernels::cuda::kTileRows;
constexpr int kGroups = 20;

struct Table {
  const char* title;
  std::vector<Shape> shapes;
};

const std::vector<Table>& Tables() {
  static const std::vector<Table> tables = {
      {"The article's sizes", {{8192, 4096}, {16384, 16384}, {32768, 32768}}},
      {"The same bytes in other shapes",
       {{4096, 8192}, {8192, 4096}, {2048, 16384}, {65536, 512}}},
      {"Sizes across the L2",
       {{1024, 4096},
        {2048, 4096},
        {4096, 4096},
        {8192, 4096},
        {16384, 4096},
        {32768, 4096},
        {65536, 4096},
        {131072, 4096}}}};
  return tables;
}

// Reads 16 rows of a matrix from `begin` on to the host.
using ReadGroup = std::function<UnpackRow(int64_t begin)>;

// One way to multiply. `bytes` is what it reads of the matrix.
struct Step {
  std::string name;
  std::function<void()> enqueue;
  const std::byte* data = nullptr;
  int64_t bytes = 0;
  const ReadGroup* rows = nullptr;
  double max_error = kMaxRelativeError;
};

struct Result {
  double cold_us = 0;
  double hot_us = 0;  // a node of a graph that multiplies by it again and again
};

// One shape: matrices, vectors and the table of its steps. Owned by RunLadder.
class LadderShape final {
 public:
  LadderShape(const SweepTools& tools, Shape shape)
      : tools_(tools), shape_(shape) {}

  absl::Status Allocate();
  // The number of wrong results.
  absl::StatusOr<int> Run();

 private:
  absl::Status AllocateQ4();
  UnpackRow ReadQ4Rows(int64_t begin) const;
  std::vector<Step> Steps() const;
  std::vector<Step> PackedSteps() const;
  absl::StatusOr<Step> CublasStep();
  double RelativeError(const Step& step) const;
  Result Time(const Step& step) const;
  cudaStream_t stream() const { return tools_.timer->stream().get(); }

  const SweepTools& tools_;
  const Shape shape_;
  DeviceBuffer x_, y_, x_codes_, x_scales_, q4_weights_, scratch_;
  std::vector<double> x_host_;
  std::optional<Weights> half_, packed_;
  std::optional<CublasChoice> cublas_;
  LadderQ4 q4_;
  LadderQ8 q8_;
  const ReadGroup read_q4_ = [this](int64_t begin) {
    return ReadQ4Rows(begin);
  };
  const ReadGroup read_half_ = [this](int64_t begin) {
    return half_->ReadRows(begin, kGroupRows);
  };
  const ReadGroup read_packed_ = [this](int64_t begin) {
    return packed_->ReadRows(begin, kGroupRows);
  };
};

absl::Status LadderShape::AllocateQ4() {
  const int64_t blocks = shape_.n * shape_.k / kQ4BlockWeights;
  const int64_t code_bytes = blocks * kQ4BlockCodeBytes;
  // One buffer, so that the read floor can be measured on all of it.
  NIBBLE_ASSIGN_OR_RETURN(q4_weights_,
                          DeviceBuffer::Make(code_bytes + 2 * blocks));
  auto* const scales = q4_weights_.as<uint8_t>() + code_bytes;
  LaunchFillBytes(q4_weights_.data(), code_bytes, 11, stream());
  LaunchFillUniform(DType::kF16, scales, blocks,
                    {.low = 0.002f, .high = 0.003f}, 12, stream());
  q4_ = {.codes = q4_weights_.as<uint8_t>(),
         .scales = reinterpret_cast<const uint16_t*>(scales),
         .n = shape_.n,
         .k = shape_.k};
  const int64_t x_blocks = shape_.k / kQ4BlockWeights;
  NIBBLE_ASSIGN_OR_RETURN(x_codes_, DeviceBuffer::Make(shape_.k));
  NIBBLE_ASSIGN_OR_RETURN(
      x_scales_,
      DeviceBuffer::Make(2 * static_cast<int64_t>(sizeof(float)) * x_blocks));
  q8_ = {.codes = x_codes_.as<uint8_t>(), .scales = x_scales_.as<float>()};
  return absl::OkStatus();
}

absl::Status LadderShape::Allocate() {
  const kernels::cuda::Stream& queue = tools_.timer->stream();
  NIBBLE_ASSIGN_OR_RETURN(x_, DeviceBuffer::Make(2 * shape_.k));
  NIBBLE_ASSIGN_OR_RETURN(
      y_, DeviceBuffer::Make(static_cast<int64_t>(sizeof(float)) * shape_.n));
  NIBBLE_ASSIGN_OR_RETURN(
      scratch_, DeviceBuffer::Make(kernels::cuda::W4ScratchBytes(1, shape_.k)));
  NIBBLE_RETURN_IF_ERROR(AllocateQ4());
  NIBBLE_ASSIGN_OR_RETURN(half_,
                          Weights::MakeDense(DType::kF16, shape_, queue));
  NIBBLE_ASSIGN_OR_RETURN(
      packed_, Weights::MakeW4(*W4FormatByName("q4_0"), shape_, queue));
  LaunchFillUniform(DType::kF16, x_.data(), shape_.k, {.low = -1, .high = 1},
                    13, stream());
  LaunchQuantize(x_.data(), shape_.k, q8_, stream());
  queue.Synchronize();
  std::vector<uint16_t> bits(shape_.k);
  NIBBLE_CUDA_CHECK(
      cudaMemcpy(bits.data(), x_.data(), x_.bytes(), cudaMemcpyDeviceToHost));
  for (const uint16_t value : bits) {
    x_host_.push_back(kernels::reference::HalfToFloat(value));
  }
  return absl::OkStatus();
}

UnpackRow LadderShape::ReadQ4Rows(int64_t begin) const {
  const int64_t row_blocks = shape_.k / kQ4BlockWeights;
  struct Rows {
    std::vector<uint8_t> codes;
    std::vector<uint16_t> scales;
  };
  auto rows = std::make_shared<Rows>();
  rows->codes.resize(kGroupRows * row_blocks * kQ4BlockCodeBytes);
  rows->scales.resize(kGroupRows * row_blocks);
  NIBBLE_CUDA_CHECK(cudaMemcpy(
      rows->codes.data(), q4_.codes + begin * row_blocks * kQ4BlockCodeBytes,
      rows->codes.size(), cudaMemcpyDeviceToHost));
  NIBBLE_CUDA_CHECK(
      cudaMemcpy(rows->scales.data(), q4_.scales + begin * row_blocks,
                 2 * rows->scales.size(), cudaMemcpyDeviceToHost));
  return [rows, begin, row_blocks](int64_t row, float* out) {
    for (int64_t i = 0; i < row_blocks * kQ4BlockWeights; ++i) {
      const int64_t at = (row - begin) * row_blocks * kQ4BlockWeights + i;
      const int code = rows->codes[at / 2] >> (at % 2 * 4) & 15;
      out[i] =
          kernels::reference::HalfToFloat(rows->scales[at / kQ4BlockWeights]) *
          static_cast<float>(code - 8);
    }
  };
}

std::vector<Step> LadderShape::Steps() const {
  const auto y = y_.as<float>();
  const auto q4 = [&](std::string name, std::function<void()> enqueue,
                      double max_error = kMaxRelativeError) {
    return Step{.name = std::move(name),
                .enqueue = std::move(enqueue),
                .data = q4_weights_.data(),
                .bytes = q4_weights_.bytes(),
                .rows = &read_q4_,
                .max_error = max_error};
  };
  return {Step{.name = "FP16 matrix",
               .enqueue =
                   [=, this] {
                     LaunchHalfMatrix(half_->rotation().data, x_.data(), y,
                                      shape_.n, shape_.k, stream());
                   },
               .data = half_->rotation().data,
               .bytes = half_->rotation().bytes,
               .rows = &read_half_},
          q4("byte loads",
             [=, this] { LaunchByteLoads(q4_, x_.data(), y, stream()); }),
          q4("16-byte code loads",
             [=, this] { LaunchWideCodes(q4_, x_.data(), y, stream()); }),
          q4("16-byte loads of x too",
             [=, this] { LaunchWideAll(q4_, x_.data(), y, stream()); }),
          q4(
              "integer dots",
              [=, this] { LaunchIntegerDots(q4_, q8_, y, stream()); },
              kMaxQuantizedError),
          q4(
              "quantize x, integer dots",
              [=, this] {
                LaunchQuantize(x_.data(), shape_.k, q8_, stream());
                LaunchIntegerDots(q4_, q8_, y, stream());
              },
              kMaxQuantizedError)};
}

std::vector<Step> LadderShape::PackedSteps() const {
  const W4Args args{.w = packed_->W4(0),
                    .x = x_.data(),
                    .ldx = shape_.k,
                    .x_dtype = DType::kF16,
                    .y = y_.data(),
                    .ldy = shape_.n,
                    .y_dtype = DType::kF32,
                    .m = 1,
                    .n_out = shape_.n,
                    .scratch = scratch_.data()};
  std::vector<Step> steps;
  for (const auto& [kernel, spec] :
       FastestW4(*tools_.timer, args, *tools_.device)) {
    steps.push_back({.name = kernel,
                     .enqueue =
                         [this, args, spec = spec] {
                           LaunchW4(args, spec, *tools_.device, stream());
                         },
                     .data = packed_->rotation().data,
                     .bytes = packed_->rotation().bytes,
                     .rows = &read_packed_});
  }
  return steps;
}

absl::StatusOr<Step> LadderShape::CublasStep() {
  const void* w = half_->rotation().data;
  NIBBLE_ASSIGN_OR_RETURN(cublas_, FastestCublas(*tools_.timer, *tools_.cublas,
                                                 {.m = 1,
                                                  .n = shape_.n,
                                                  .k = shape_.k,
                                                  .input = DType::kF16,
                                                  .output = DType::kF32},
                                                 x_.data(), w, y_.data()));
  return Step{.name = "cuBLASLt FP16",
              .enqueue =
                  [=, this] {
                    RunCublas(*cublas_, x_.data(), w, y_.data(),
                              tools_.timer->stream());
                  },
              .data = half_->rotation().data,
              .bytes = half_->rotation().bytes,
              .rows = &read_half_};
}

double LadderShape::RelativeError(const Step& step) const {
  constexpr int kNanBytes = 0xff;
  NIBBLE_CUDA_CHECK(
      cudaMemsetAsync(y_.data(), kNanBytes, y_.bytes(), stream()));
  step.enqueue();
  tools_.timer->stream().Synchronize();
  std::vector<float> y(shape_.n);
  NIBBLE_CUDA_CHECK(
      cudaMemcpy(y.data(), y_.data(), y_.bytes(), cudaMemcpyDeviceToHost));
  for (const float value : y) {
    if (std::isnan(value)) return value;
  }
  std::mt19937_64 random(static_cast<uint64_t>(shape_.n));
  ErrorSum error;
  std::vector<double> references(kGroupRows);
  for (int group = 0; group < kGroups; ++group) {
    const int64_t begin =
        static_cast<int64_t>(random() % (shape_.n / kGroupRows)) * kGroupRows;
    const UnpackRow unpack = (*step.rows)(begin);
    ParallelFor(kGroupRows, [&](int64_t i) {
      std::vector<float> w(shape_.k);
      unpack(begin + i, w.data());
      references[i] = Dot(x_host_, w.data());
    });
    for (int64_t i = 0; i < kGroupRows; ++i) {
      error.Add(y[begin + i], references[i]);
    }
  }
  return error.Relative();
}

Result LadderShape::Time(const Step& step) const {
  Result result;
  result.cold_us = tools_.timer->ColdUs(step.enqueue);
  result.hot_us = tools_.timer->NodeUs(result.cold_us, step.bytes,
                                       [&](int64_t) { step.enqueue(); });
  return result;
}

absl::StatusOr<int> LadderShape::Run() {
  std::vector<Step> steps = Steps();
  for (Step& step : PackedSteps()) steps.push_back(std::move(step));
  if (tools_.cublas != nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(Step step, CublasStep());
    steps.push_back(std::move(step));
  }
  std::printf("\n%lld x %lld\n", static_cast<long long>(shape_.n),
              static_cast<long long>(shape_.k));
  int wrong = 0;
  Result base;  // the FP16 matrix, which stands first
  for (const Step& step : steps) {
    const double error = RelativeError(step);
    std::string line = absl::StrFormat("  %-25s %7.1f MB", step.name,
                                       1e-6 * static_cast<double>(step.bytes));
    if (!(error <= step.max_error)) {
      ++wrong;
      std::printf("%s  ERROR: relative error %.3g\n", line.c_str(), error);
      continue;
    }
    const Result result = Time(step);
    if (base.cold_us == 0) base = result;
    const double floor_us =
        tools_.timer->ReadColdUs({.data = step.data, .bytes = step.bytes});
    std::printf(
        "%s  cold %8.2f us %6.0f GB/s %5.1f%% of floor %5.2fx FP16"
        "  hot %8.2f us %5.2fx FP16  error %.1e\n",
        line.c_str(), result.cold_us,
        1e-3 * static_cast<double>(step.bytes) / result.cold_us,
        100 * floor_us / result.cold_us, base.cold_us / result.cold_us,
        result.hot_us, base.hot_us / result.hot_us, error);
  }
  std::fflush(stdout);
  return wrong;
}

}  // namespace

absl::StatusOr<int> RunLadder(const SweepTools& tools) {
  int wrong = 0;
  for (const Table& table : Tables()) {
    std::printf("\n== %s ==\n", table.title);
    for (const Shape shape : table.shapes) {
      LadderShape ladder(tools, shape);
      NIBBLE_RETURN_IF_ERROR(ladder.Allocate());
      NIBBLE_ASSIGN_OR_RETURN(const int more, ladder.Run());
      wrong += more;
    }
  }
  return wrong;
}

}  // namespace nibble::bench
