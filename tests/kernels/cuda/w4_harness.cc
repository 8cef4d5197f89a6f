#include "tests/kernels/cuda/w4_harness.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>
#include <utility>

namespace nibble::test {

using kernels::DType;
using kernels::LaunchSpec;
using kernels::WeightView;
using kernels::cuda::DeviceBuffer;
using kernels::cuda::PinnedBuffer;
using kernels::cuda::W4Args;

namespace {

constexpr int64_t kGuardRows = 2;
constexpr int kPoison = 0xff;  // a NaN in every type

// What rounding may change: half a unit in the last place.
double RoundingError(DType dtype, double value) {
  switch (dtype) {
    case DType::kBF16:
      return std::fabs(value) * 0x1p-8;
    case DType::kF16:
      return std::fabs(value) * 0x1p-11 + 0x1p-25;
    default:
      return std::fabs(value) * 0x1p-24 + 0x1p-149;
  }
}

}  // namespace

absl::StatusOr<DeviceWeight> DeviceWeight::Make(
    std::span<const WeightView> parts,
    const kernels::cuda::PackOptions& options) {
  auto packed = kernels::cuda::PackW4(parts, options);
  if (!packed.ok()) return packed.status();
  DeviceWeight weight;
  weight.packed = *std::move(packed);
  weight.blocks = ToDevice<std::byte>(weight.packed.blocks);
  weight.view = {.blocks = weight.blocks.data(),
                 .n = weight.packed.n,
                 .k = weight.packed.k,
                 .layout = weight.packed.layout,
                 .tensor_scale = weight.packed.tensor_scale};
  return weight;
}

double Result::At(int64_t row, int64_t column) const {
  return Decode(dtype, Row(row) + column * kernels::ElementBytes(dtype));
}

Job Job::Of(const DeviceWeight& w, const Inputs& x, int64_t m) {
  return {.w = w.view,
          .x = x.device(),
          .ldx = x.pitch(),
          .x_dtype = x.dtype(),
          .m = m,
          .n_out = w.view.n};
}

Runner::Runner() : device_(kernels::cuda::ListDevices().value().at(0)) {}

Runner& Runner::Get() {
  static auto* const runner = new Runner();
  return *runner;
}

std::vector<LaunchSpec> Runner::Candidates(const Job& job) const {
  return kernels::cuda::W4Candidates(job.w, job.m, job.epilogue, device_);
}

void* Runner::Scratch(int64_t m, int64_t k) {
  const int64_t bytes = kernels::cuda::W4ScratchBytes(m, k);
  if (scratch_.bytes() < bytes) {
    scratch_ = DeviceBuffer::Make(bytes).value();
    NIBBLE_CUDA_CHECK(
        cudaMemsetAsync(scratch_.data(), 0, bytes, stream_.get()));
  }
  return scratch_.data();
}

Result Runner::Run(const Job& job, const LaunchSpec& spec) {
  const int64_t size = kernels::ElementBytes(job.y_dtype);
  // Guards on both sides of every row; odd where nothing need be aligned.
  const int64_t offset = job.aligned ? 8 : 5;
  int64_t pitch = job.n_out + 2 * offset;
  pitch = job.aligned ? (pitch + 7) / 8 * 8 : pitch | 1;
  const int64_t bytes = (job.m + 2 * kGuardRows) * pitch * size;
  if (y_.bytes() < bytes) y_ = DeviceBuffer::Make(bytes).value();
  if (host_.bytes() < bytes) host_ = PinnedBuffer::Make(bytes).value();
  const int64_t start = (kGuardRows * pitch + offset) * size;
  NIBBLE_CUDA_CHECK(cudaMemsetAsync(y_.data(), kPoison, bytes, stream_.get()));
  if (job.before != nullptr) {
    NIBBLE_CUDA_CHECK(cudaMemcpy2DAsync(
        y_.data() + start, pitch * size, job.before, job.n_out * size,
        job.n_out * size, job.m, cudaMemcpyHostToDevice, stream_.get()));
  }
  const W4Args args{.w = job.w,
                    .x = job.x,
                    .ldx = job.ldx,
                    .x_dtype = job.x_dtype,
                    .y = y_.data() + start,
                    .ldy = pitch,
                    .y_dtype = job.y_dtype,
                    .m = job.m,
                    .n_out = job.n_out,
                    .bias = job.bias,
                    .epilogue = job.epilogue,
                    .scratch = Scratch(job.m, job.w.k)};
  kernels::cuda::LaunchW4(args, spec,
                          job.device != nullptr ? *job.device : device_,
                          stream_.get(), {.overlap = job.overlap});
  NIBBLE_CUDA_CHECK(cudaMemcpyAsync(host_.data(), y_.data(), bytes,
                                    cudaMemcpyDeviceToHost, stream_.get()));
  stream_.Synchronize();
  Result result{.data = host_.data() + start,
                .pitch_bytes = pitch * size,
                .dtype = job.y_dtype};
  poison_.resize(
      std::max(poison_.size(), static_cast<size_t>(kGuardRows * pitch * size)),
      static_cast<std::byte>(kPoison));
  result.problem = CheckGuards(job, pitch * size, offset * size);
  return result;
}

std::string Runner::CheckGuards(const Job& job, int64_t pitch,
                                int64_t offset) const {
  const int64_t row_bytes = job.n_out * kernels::ElementBytes(job.y_dtype);
  const auto spoilt = [this](const std::byte* from, int64_t bytes) {
    return std::memcmp(from, poison_.data(), bytes) != 0;
  };
  const std::byte* rows = host_.data() + kGuardRows * pitch;
  if (spoilt(host_.data(), kGuardRows * pitch)) return "wrote above y";
  if (spoilt(rows + job.m * pitch, kGuardRows * pitch)) return "wrote below y";
  for (int64_t i = 0; i < job.m; ++i) {
    const std::byte* row = rows + i * pitch;
    const std::string where = " of row " + std::to_string(i);
    if (spoilt(row, offset)) return "wrote left" + where;
    if (spoilt(row + offset + row_bytes, pitch - offset - row_bytes)) {
      return "wrote right" + where;
    }
  }
  return "";
}

void GpuTest::SetUp() {
  const auto devices = kernels::cuda::ListDevices();
  if (!devices.ok() || devices->empty()) {
    GTEST_SKIP() << "no GPU: " << devices.status();
  }
}

std::string Compare(const Result& result, const Reference& reference, int64_t m,
                    int64_t first_row) {
  if (!result.problem.empty()) return result.problem;
  // The error of single elements scatters by less than this about what
  // Reference says, their norm does not.
  constexpr double kElement = 4;
  constexpr double kNorm = 1;
  // Of errors spread evenly over half a unit, and of numbers over an octave.
  constexpr double kRounding = 0.7;
  // The square of an error spread evenly over a unit scatters by this variance;
  // where few elements make up the norm, so does the norm.
  constexpr double kSquareVariance = 4.0 / 45, kDeviations = 4;
  double difference = 0, allowed = 0, norm = 0, variance = 0;
  for (size_t c = 0; c < reference.columns.size(); ++c) {
    for (int64_t i = 0; i < m; ++i) {
      const double expected = reference.Value(c, first_row + i);
      const double error = reference.Error(c, first_row + i);
      const double actual = result.At(i, reference.columns[c]);
      const double off = std::fabs(actual - expected);
      const double rounding = RoundingError(result.dtype, expected);
      // (1 + 1/8) for the rounding of what is off already.
      if (!(off <= kElement * error + 1.125 * rounding)) {
        std::ostringstream text;
        text << "y[" << i << ", " << reference.columns[c] << "] = " << actual
             << ", expected " << expected << " +- "
             << kElement * error + rounding;
        return text.str();
      }
      difference += off * off;
      norm += expected * expected;
      allowed += std::pow(kNorm * error, 2) + std::pow(kRounding * rounding, 2);
      variance += kSquareVariance * std::pow(rounding, 4);
    }
  }
  allowed += kDeviations * std::sqrt(variance);
  if (difference <= allowed) return "";
  std::ostringstream text;
  text << "relative error " << std::sqrt(difference / norm) << ", allowed "
       << std::sqrt(allowed / norm);
  return text.str();
}

std::string CompareBits(const Result& result,
                        std::span<const std::byte> expected, int64_t m,
                        int64_t n) {
  if (!result.problem.empty()) return result.problem;
  const int64_t size = kernels::ElementBytes(result.dtype);
  for (int64_t i = 0; i < m; ++i) {
    const std::byte* want = expected.data() + i * n * size;
    if (std::memcmp(result.Row(i), want, n * size) == 0) continue;
    for (int64_t j = 0; j < n; ++j) {
      const std::byte* got = result.Row(i) + j * size;
      if (std::memcmp(got, want + j * size, size) != 0) {
        std::ostringstream text;
        text.precision(9);
        text << "y[" << i << ", " << j << "] = " << result.At(i, j)
             << ", another run gave " << Decode(result.dtype, want + j * size);
        return text.str();
      }
    }
  }
  return "";
}

std::vector<std::byte> Copy(const Result& result, int64_t m, int64_t n) {
  const int64_t row_bytes = n * kernels::ElementBytes(result.dtype);
  std::vector<std::byte> copy(static_cast<size_t>(m * row_bytes));
  for (int64_t i = 0; i < m; ++i) {
    std::memcpy(copy.data() + i * row_bytes, result.Row(i), row_bytes);
  }
  return copy;
}

void LargeGpuTest::SetUp() {
  // What the largest of these tests has on the device.
  constexpr int64_t kNeededBytes = int64_t{24} << 30;
  GpuTest::SetUp();
  if (IsSkipped()) return;
  size_t free_bytes = 0, total_bytes = 0;
  NIBBLE_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  if (static_cast<int64_t>(free_bytes) < kNeededBytes) {
    GTEST_SKIP() << free_bytes << " bytes of device memory, the test needs "
                 << kNeededBytes;
  }
}

kernels::cuda::DeviceBuffer LargeGpuTest::Repeat(const void* from,
                                                 int64_t bytes,
                                                 int64_t copies) {
  auto all = kernels::cuda::DeviceBuffer::Make(bytes * copies).value();
  for (int64_t i = 0; i < copies; ++i) {
    NIBBLE_CUDA_CHECK(cudaMemcpy(all.data() + i * bytes, from, bytes,
                                 cudaMemcpyDeviceToDevice));
  }
  NIBBLE_CUDA_CHECK(cudaDeviceSynchronize());
  return all;
}

std::vector<int64_t> AllRows() {
  std::vector<int64_t> rows;
  for (int64_t m = 1; m <= 33; ++m) rows.push_back(m);
  for (const int64_t m : {64, 128, 256}) {
    for (int64_t i = -1; i <= 1; ++i) rows.push_back(m + i);
  }
  return rows;
}

}  // namespace nibble::test
