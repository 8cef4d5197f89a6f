#include "bench/gpu_w4a8.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "bench/gpu_check.h"
#include "bench/gpu_w4a8_operands.h"
#include "kernels/reference/half.h"
#include "kernels/reference/w4a8_gemm.h"

namespace nibble::bench {
namespace {

using kernels::DType;
using kernels::LaunchSpec;
using kernels::cuda::DeviceBuffer;
using kernels::cuda::PinnedBuffer;
using kernels::cuda::W4a8Args;
using kernels::cuda::W4a8Format;
using kernels::cuda::W4a8Kind;
using kernels::cuda::W4Numbers;

// The matrix units do twice as many 8-bit products as 16-bit ones.
constexpr double kEightBitRate = 2;
// Of results rounded to BF16.
constexpr double kMaxRelativeError = 3e-3;

// What a kernel computes, by its name in the CSV file.
struct Path {
  const char* name;
  const char* weights;  // RandomNumbers
  W4a8Format format;
};
constexpr Path kPaths[] = {
    {"w4a8_int8_rerounded", "int4-g128", {W4a8Kind::kRerounded, 128}},
    {"w4a8_int8", "int4-g128", {W4a8Kind::kScaleMin, 128}},
    {"w4a8_int8", "int4s-g128", {W4a8Kind::kScale, 128}},
    {"w4a8_int8", "q4_0", {W4a8Kind::kScale, 32}},
    {"q4k_int8_rerounded", "q4_k", {W4a8Kind::kRerounded, 32}},
    {"q4k_int8", "q4_k", {W4a8Kind::kSubScale, 32}},
    {"q4k_int8_steps", "q4_k", {W4a8Kind::kSubScaleSums, 32}},
    {"q4k_int8_float", "q4_k", {W4a8Kind::kScaleMin, 32}},
};

// One shape and format: what is computed on it. Owned by SweepW4a8.
class FormatSweep final {
 public:
  FormatSweep(const SweepOptions& options, const SweepTools& tools,
              const Path& path, const W4Numbers& numbers,
              const W4a8Inputs& inputs,
              const std::map<int64_t, double>& bf16_us)
      : options_(options),
        tools_(tools),
        path_(path),
        numbers_(numbers),
        inputs_(inputs),
        bf16_us_(bf16_us) {}

  absl::Status Allocate();
  void RunAll();
  int wrong() const { return wrong_; }

 private:
  W4a8Args Args(int64_t m, int64_t node) const;
  void Sum(int64_t m);
  // Judges y's values at some places; error of weights as files have them.
  double Check(const LaunchSpec& spec, int64_t m, bool& wrong);
  double Product(int64_t row, int64_t column) const;
  double Rerounded(int64_t row, int64_t column) const;
  void CheckAndTime(const LaunchSpec& spec, int64_t m, bool with_sums);
  cudaStream_t stream() const { return tools_.timer->stream().get(); }

  const SweepOptions& options_;
  const SweepTools& tools_;
  const Path& path_;
  const W4Numbers& numbers_;
  const W4a8Inputs& inputs_;
  const std::map<int64_t, double>& bf16_us_;
  W4a8Operand operand_;
  DeviceBuffer sums_, y_;
  PinnedBuffer host_;
  int wrong_ = 0;
};

absl::Status FormatSweep::Allocate() {
  const int64_t max_m = *std::max_element(options_.m.begin(), options_.m.end());
  NIBBLE_ASSIGN_OR_RETURN(operand_, W4a8Operand::Make(numbers_, path_.format));
  NIBBLE_ASSIGN_OR_RETURN(y_, DeviceBuffer::Make(2 * max_m * numbers_.n));
  NIBBLE_ASSIGN_OR_RETURN(host_, PinnedBuffer::Make(2 * max_m * numbers_.n));
  if (path_.format.HasMinimums()) {
    NIBBLE_ASSIGN_OR_RETURN(
        sums_, DeviceBuffer::Make(max_m * kernels::cuda::W4a8SumsPitch(
                                              path_.format, numbers_.k)));
  }
  return absl::OkStatus();
}

W4a8Args FormatSweep::Args(int64_t m, int64_t node) const {
  return {.w = operand_.Weights(node),
          .x = {.codes = inputs_.device(),
                .pitch = numbers_.k,
                .scales = inputs_.scales(),
                .sums = sums_.data()},
          .m = m,
          .y = y_.data(),
          .ldy = numbers_.n};
}

void FormatSweep::Sum(int64_t m) {
  if (!path_.format.HasMinimums()) return;
  LaunchW4a8Sums(Args(m, 0).x, path_.format, m, numbers_.k, sums_.data(),
                 stream());
}

double FormatSweep::Product(int64_t row, int64_t column) const {
  const auto k = static_cast<size_t>(numbers_.k);
  const auto groups = static_cast<size_t>(numbers_.Groups());
  const auto c = static_cast<size_t>(column);
  const kernels::reference::W4Row w{
      .codes = std::span(numbers_.codes).subspan(c * k, k),
      .scales = std::span(numbers_.scales).subspan(c * groups, groups),
      .minimums = std::span(numbers_.minimums).subspan(c * groups, groups),
      .group = numbers_.group};
  return inputs_.Scale(row) * DotOfW4A8(w, inputs_.Row(row)).value;
}

double FormatSweep::Rerounded(int64_t row, int64_t column) const {
  const auto x = inputs_.Row(row);
  int64_t sum = 0;
  for (int64_t i = 0; i < numbers_.k; ++i) {
    sum += int64_t{W4a8CodeAt(operand_.packed(), column, i)} * x[i];
  }
  return inputs_.Scale(row) * operand_.packed().row_scales[column] *
         static_cast<double>(sum);
}

double FormatSweep::Check(const LaunchSpec& spec, int64_t m, bool& wrong) {
  constexpr int kRandomOutputs = 2000;
  constexpr int kNanBytes = 0xff;  // a NaN as BF16
  const int64_t count = m * numbers_.n;
  NIBBLE_CUDA_CHECK(cudaMemsetAsync(y_.data(), kNanBytes, 2 * count, stream()));
  Sum(m);
  LaunchW4a8(Args(m, 0), spec, *tools_.device, stream());
  NIBBLE_CUDA_CHECK(cudaMemcpyAsync(host_.data(), y_.data(), 2 * count,
                                    cudaMemcpyDeviceToHost, stream()));
  tools_.timer->stream().Synchronize();
  const auto result = [&](int64_t at) {
    return kernels::reference::BFloat16ToFloat(host_.as<uint16_t>()[at]);
  };
  std::atomic<bool> nan = false;
  ParallelFor(m, [&](int64_t row) {
    for (int64_t n = 0; n < numbers_.n; ++n) {
      if (std::isnan(result(row * numbers_.n + n))) nan = true;
    }
  });
  wrong = true;
  if (nan) return std::numeric_limits<double>::quiet_NaN();
  std::vector<int64_t> places;
  for (int64_t n = 0; n < std::min<int64_t>(numbers_.n, kRandomOutputs); ++n) {
    places.push_back(count - 1 - n);
  }
  std::mt19937_64 random(static_cast<uint64_t>(m));
  for (int i = 0; i < kRandomOutputs; ++i) {
    places.push_back(static_cast<int64_t>(random() % count));
  }
  const bool rerounded = path_.format.kind == W4a8Kind::kRerounded;
  std::vector<double> products(places.size()), own(places.size());
  ParallelFor(static_cast<int64_t>(places.size()), [&](int64_t i) {
    const int64_t row = places[i] / numbers_.n, column = places[i] % numbers_.n;
    products[i] = Product(row, column);
    own[i] = rerounded ? Rerounded(row, column) : products[i];
  });
  ErrorSum error, own_error;
  for (size_t i = 0; i < places.size(); ++i) {
    error.Add(result(places[i]), products[i]);
    own_error.Add(result(places[i]), own[i]);
  }
  wrong = !(own_error.Relative() <= kMaxRelativeError);
  return error.Relative();
}

void FormatSweep::CheckAndTime(const LaunchSpec& spec, int64_t m,
                               bool with_sums) {
  GpuTimer& timer = *tools_.timer;
  const Rotation& rotation = operand_.rotation();
  Row row{.path = path_.name,
          .format = path_.weights,
          .m = m,
          .n = numbers_.n,
          .k = numbers_.k,
          .choice = spec.ToString()};
  if (with_sums) row.path += "_with_sums";
  row.rel_err = Check(spec, m, row.wrong);
  wrong_ += row.wrong ? 1 : 0;
  if (options_.check_only) {
    std::printf("%-22s %5lldx%-5lld M %-5lld error %.1e %s  [%s]\n",
                row.path.c_str(), static_cast<long long>(row.n),
                static_cast<long long>(row.k), static_cast<long long>(row.m),
                row.rel_err, row.wrong ? "WRONG" : "ok", row.choice.c_str());
    return;
  }
  if (!row.wrong) {
    const auto enqueue = [&](int64_t node, bool overlap) {
      if (with_sums) Sum(m);
      LaunchW4a8(Args(m, node), spec, *tools_.device, stream(),
                 {.overlap = overlap});
    };
    row.floor_us = timer.ReadColdUs(rotation);
    row.us_load_node = timer.ReadNodeUs(rotation);
    row.us_cold = timer.ColdUs([&] { enqueue(0, false); });
    row.us_graph_plain =
        timer.NodeUs(row.us_cold, rotation.bytes,
                     [&](int64_t node) { enqueue(node, false); });
    row.us_graph = timer.NodeUs(row.us_cold, rotation.bytes,
                                [&](int64_t node) { enqueue(node, true); });
    row.bytes = rotation.bytes + m * numbers_.k + 2 * m * numbers_.n;
    row.pct_peak =
        100 * std::max(row.gbps() / tools_.ceilings.peak_gbps(),
                       row.tflops() / (kEightBitRate * options_.peak_tflops));
    const auto bf16 = bf16_us_.find(m);
    if (bf16 != bf16_us_.end()) row.bf16_us = bf16->second;
  }
  Print(row);
  tools_.csv->Write(row);
}

void FormatSweep::RunAll() {
  constexpr int kTrials = 3;
  for (const int64_t m : options_.m) {
    std::vector<LaunchSpec> specs = W4a8Candidates(
        {path_.format, m, numbers_.n, numbers_.k}, *tools_.device);
    if (!options_.check_only && !options_.every && !specs.empty()) {
      std::vector<std::pair<double, LaunchSpec>> trials;
      trials.reserve(specs.size());
      for (const LaunchSpec& spec : specs) {
        trials.emplace_back(
            tools_.timer->ColdUs(
                [&] { LaunchW4a8(Args(m, 0), spec, *tools_.device, stream()); },
                kTrials),
            spec);
      }
      specs = {std::min_element(trials.begin(), trials.end(),
                                [](const auto& a, const auto& b) {
                                  return a.first < b.first;
                                })
                   ->second};
    }
    for (const LaunchSpec& spec : specs) {
      CheckAndTime(spec, m, false);
      if (path_.format.HasMinimums() && !options_.check_only) {
        CheckAndTime(spec, m, true);
      }
    }
  }
}

}  // namespace

absl::StatusOr<int> SweepW4a8(const SweepOptions& options,
                              const SweepTools& tools) {
  int wrong = 0;
  const int64_t max_m = *std::max_element(options.m.begin(), options.m.end());
  for (const Shape shape : options.shapes) {
    NIBBLE_ASSIGN_OR_RETURN(const auto bf16_us,
                            TimeCublasBf16(options, tools, shape));
    NIBBLE_ASSIGN_OR_RETURN(const W4a8Inputs inputs,
                            W4a8Inputs::Make(shape, max_m));
    W4Numbers numbers;
    std::string_view made;
    for (const Path& path : kPaths) {
      if (made != path.weights) numbers = RandomNumbers(path.weights, shape);
      made = path.weights;
      FormatSweep sweep(options, tools, path, numbers, inputs, bf16_us);
      NIBBLE_RETURN_IF_ERROR(sweep.Allocate());
      sweep.RunAll();
      wrong += sweep.wrong();
    }
  }
  return wrong;
}

}  // namespace nibble::bench
