#include "bench/gpu_candidate.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <thread>
#include <utility>

#include "base/status.h"
#include "bench/gpu_check.h"
#include "kernels/reference/half.h"

namespace nibble::bench {

using kernels::DType;
using kernels::cuda::DeviceBuffer;
using kernels::cuda::PinnedBuffer;

namespace {

constexpr int kTrials = 5;
// In which the power limit forgets what ran before.
constexpr std::chrono::milliseconds kRest(20);

}  // namespace

absl::StatusOr<CandidateBench> CandidateBench::Make(const SweepOptions& options,
                                                    const SweepTools& tools,
                                                    Shape shape) {
  CandidateBench made(options, tools, shape);
  const int64_t max_m = *std::max_element(options.m.begin(), options.m.end());
  const int64_t bytes = max_m * shape.n * 4;  // of INT32
  NIBBLE_ASSIGN_OR_RETURN(made.y_, DeviceBuffer::Make(bytes));
  NIBBLE_ASSIGN_OR_RETURN(made.host_, PinnedBuffer::Make(bytes));
  return made;
}

double CandidateBench::Result(const Candidate& candidate, int64_t at) const {
  if (candidate.decode != nullptr) return candidate.decode(host_.data(), at);
  switch (candidate.y_dtype) {
    case DType::kI32:
      return host_.as<int32_t>()[at];
    case DType::kF16:
      return kernels::reference::HalfToFloat(host_.as<uint16_t>()[at]);
    default:
      return kernels::reference::BFloat16ToFloat(host_.as<uint16_t>()[at]);
  }
}

CandidateBench::Errors CandidateBench::Check(int64_t m,
                                             const Candidate& candidate) const {
  constexpr int kRandomOutputs = 500;
  constexpr int kNanBytes = 0xff;  // a NaN as BF16 and as FP16
  const int64_t columns =
      candidate.y_columns > 0 ? candidate.y_columns : shape_.n;
  const int64_t count = m * columns;
  const int64_t bytes = m * shape_.n * kernels::ElementBytes(candidate.y_dtype);
  NIBBLE_CUDA_CHECK(cudaMemsetAsync(y(), kNanBytes, bytes, stream()));
  candidate.enqueue({});
  NIBBLE_CUDA_CHECK(cudaMemcpyAsync(host_.data(), y(), bytes,
                                    cudaMemcpyDeviceToHost, stream()));
  tools_->timer->stream().Synchronize();
  std::atomic<bool> nan = false;
  ParallelFor(m, [&](int64_t row) {
    for (int64_t n = 0; n < columns; ++n) {
      if (std::isnan(Result(candidate, row * columns + n))) nan = true;
    }
  });
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  if (nan) return {kNan, kNan};
  // All of the last row and some outputs anywhere.
  std::vector<int64_t> places;
  for (int64_t n = 0; n < columns; ++n) places.push_back(count - 1 - n);
  std::mt19937_64 random(static_cast<uint64_t>(m));
  for (int i = 0; i < kRandomOutputs; ++i) {
    places.push_back(static_cast<int64_t>(random() % count));
  }
  const auto error = [&](const Candidate::Reference& reference) {
    std::vector<double> references(places.size());
    ParallelFor(static_cast<int64_t>(places.size()), [&](int64_t i) {
      references[i] = reference(places[i] / columns, places[i] % columns);
    });
    ErrorSum sum;
    for (size_t i = 0; i < places.size(); ++i) {
      sum.Add(Result(candidate, places[i]), references[i]);
    }
    return sum.Relative();
  };
  const double own = error(candidate.reference);
  return {own, candidate.ideal == nullptr ? own : error(candidate.ideal)};
}

Row CandidateBench::Checked(int64_t m, const Candidate& candidate) {
  Row row{.path = candidate.path,
          .format = candidate.format,
          .m = m,
          .n = shape_.n,
          .k = shape_.k,
          .choice = candidate.choice,
          .bytes = candidate.bytes};
  const Errors errors = Check(m, candidate);
  row.rel_err = errors.reported;
  row.wrong = !(errors.own <= candidate.max_error);
  wrong_ += row.wrong ? 1 : 0;
  if (options_->check_only) {
    std::printf("%-26s %-9s %5lldx%-5lld M %-5lld error %.1e %s  [%s]\n",
                row.path.c_str(), row.format.c_str(),
                static_cast<long long>(row.n), static_cast<long long>(row.k),
                static_cast<long long>(row.m), row.rel_err,
                row.wrong ? "WRONG" : "ok", row.choice.c_str());
  }
  return row;
}

Condition CandidateBench::Watch() const {
  return tools_->monitor == nullptr ? Condition{} : tools_->monitor->Read();
}

CandidateBench::ColdTimes CandidateBench::TimeCold(
    const std::vector<Candidate>& candidates, int rounds) const {
  std::vector<std::vector<double>> samples(candidates.size());
  ConditionMean condition;
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < candidates.size(); ++i) {
      samples[i].push_back(
          tools_->timer->RestedUs([&] { candidates[i].enqueue({}); }));
    }
    condition.Add(Watch());
  }
  ColdTimes times{.us = {}, .condition = condition.Mean()};
  for (std::vector<double>& of : samples) {
    std::nth_element(of.begin(), of.begin() + rounds / 2, of.end());
    times.us.push_back(of[rounds / 2]);
  }
  return times;
}

size_t CandidateBench::Fastest(const std::vector<Candidate>& candidates) const {
  const std::vector<double> us = TimeCold(candidates, kTrials).us;
  return std::min_element(us.begin(), us.end()) - us.begin();
}

void CandidateBench::TimeSustained(const Candidate& candidate, Row& row) const {
  ConditionMean condition;
  row.us_sustained = tools_->timer->SustainedUs(
      options_->sustained_s, row.us_cold,
      [&](int64_t node) { candidate.enqueue({.node = node, .overlap = true}); },
      [&] { condition.Add(Watch()); });
  row.sustained = condition.Mean();
}

void CandidateBench::TimeNodes(const Candidate& candidate, Row& row) const {
  GpuTimer& timer = *tools_->timer;
  row.us_load_node = timer.ReadNodeUs(candidate.weights);
  const auto node_us = [&](bool overlap) {
    std::this_thread::sleep_for(kRest);
    return timer.NodeUs(row.us_cold, candidate.weights.bytes,
                        [&](int64_t node) {
                          candidate.enqueue({.node = node, .overlap = overlap});
                        });
  };
  row.us_graph_plain = node_us(false);
  row.us_graph = candidate.may_overlap ? node_us(true) : row.us_graph_plain;
}

void CandidateBench::Run(int64_t m, const std::vector<Candidate>& candidates) {
  std::vector<Row> rows;
  std::vector<Candidate> right;
  for (const Candidate& candidate : candidates) {
    if (options_->sustained_s > 0 && candidate.behind_norm) continue;
    Row row = Checked(m, candidate);
    if (options_->check_only) continue;
    if (row.wrong) {
      Print(row);
      tools_->csv->Write(row);
      continue;
    }
    rows.push_back(std::move(row));
    right.push_back(candidate);
  }
  if (right.empty()) return;
  std::this_thread::sleep_for(kRest);
  const ColdTimes cold = TimeCold(right, tools_->timer->repeats());
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].us_cold = cold.us[i];
    rows[i].cold = cold.condition;
    if (right[i].baseline) bf16_us_[m] = cold.us[i];
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    Row& row = rows[i];
    row.floor_us = tools_->timer->ReadColdUs(right[i].weights);
    row.bf16_us = bf16_us_[m];
    row.pct_peak =
        100 * std::max(row.gbps() / tools_->ceilings.peak_gbps(),
                       row.tflops() / (right[i].rate * options_->peak_tflops));
    if (!options_->cold_only) TimeNodes(right[i], row);
    if (options_->sustained_s > 0) TimeSustained(right[i], row);
    Print(row);
    tools_->csv->Write(row);
  }
}

void AddWanted(const SweepOptions& options, Candidate candidate,
               std::vector<Candidate>& to) {
  if (options.Wants(candidate.path)) to.push_back(std::move(candidate));
}

}  // namespace nibble::bench
