// One way to compute a linear layer, and the bench that checks and times such
// ways against each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/gpu_linear.h"
#include "bench/gpu_operands.h"
#include "bench/gpu_rows.h"
#include "kernels/cuda/runtime.h"
#include "kernels/tensor.h"

namespace nibble::bench {

// The matrix units do twice as many 8-bit products as 16-bit ones.
inline constexpr int kEightBitRate = 2;
// Relative errors that are still right: of results in BF16 and FP16 alike; of
// products with quantized activations, which are nearly uniform: INT8's step is
// 1 / 127 of the greatest, E4M3 has 4 bits.
inline constexpr double kMaxRelativeError = 3e-3;
inline constexpr double kMaxInt8QuantError = 0.015;
inline constexpr double kMaxFp8QuantError = 0.035;

// Which copy of the weights to read, and whether the launch may overlap the
// one before. By value.
struct Turn {
  int64_t node = 0;
  bool overlap = false;
};

// One way to compute y [m, n], ready to be checked and timed. What its
// functions use outlives it. Copyable.
struct Candidate {
  std::string path;
  std::string format;
  std::string choice = "";  // for people
  std::function<void(Turn)> enqueue = nullptr;
  // What y[row, column] should be. Called from several threads at once.
  using Reference = std::function<double(int64_t row, int64_t column)>;
  Reference reference = nullptr;
  // Where `rel_err` of the row is to be the error against something else.
  Reference ideal = nullptr;
  double max_error = 0;  // ||y - reference|| / ||reference||
  Rotation weights = {};
  int64_t bytes = 0;  // read and written once: weights, x and y
  kernels::DType y_dtype = kernels::DType::kBF16;  // or kF16, kI32
  int64_t y_columns = 0;  // 0: n; else y is [m, y_columns]
  // Of y that is not numbers of y_dtype: element `at` from a copy of y's
  // memory, all of whose bytes were 0xff before.
  std::function<double(const std::byte* y, int64_t at)> decode = nullptr;
  bool may_overlap = true;   // enqueue heeds Turn::overlap
  bool baseline = false;     // what others are compared with
  bool behind_norm = false;  // left out where paths are run for long
  int rate = 1;              // of the matrix units, over that of 16 bits
};

// Checks and times the candidates for one shape. Owned by a sweep; main's
// thread only.
class CandidateBench final {
 public:
  static absl::StatusOr<CandidateBench> Make(const SweepOptions& options,
                                             const SweepTools& tools,
                                             Shape shape);

  // Where candidates write y: max_m * n * 4 bytes.
  void* y() const { return y_.data(); }

  // The index of the one that is fastest with a cold L2, of one or more.
  size_t Fastest(const std::vector<Candidate>& candidates) const;

  // Checks each, times those that are right (with a cold L2 in turns, so that
  // none has the clocks that another one left behind), prints their rows and
  // writes them to the CSV file. With options.check_only nothing is timed.
  void Run(int64_t m, const std::vector<Candidate>& candidates);

  int wrong() const { return wrong_; }  // results of Run, so far

 private:
  CandidateBench(const SweepOptions& options, const SweepTools& tools,
                 Shape shape)
      : options_(&options), tools_(&tools), shape_(shape) {}

  Row Checked(int64_t m, const Candidate& candidate);
  // Of y against the candidate's reference, and the one to report. NaN where
  // y has one.
  struct Errors {
    double own = 0;
    double reported = 0;
  };
  Errors Check(int64_t m, const Candidate& candidate) const;
  double Result(const Candidate& candidate, int64_t at) const;
  // Medians of `rounds`, microseconds, and how the device was meanwhile.
  struct ColdTimes {
    std::vector<double> us;
    Condition condition;
  };
  ColdTimes TimeCold(const std::vector<Candidate>& candidates,
                     int rounds) const;
  void TimeNodes(const Candidate& candidate, Row& row) const;
  void TimeSustained(const Candidate& candidate, Row& row) const;
  Condition Watch() const;
  cudaStream_t stream() const { return tools_->timer->stream().get(); }

  const SweepOptions* options_;
  const SweepTools* tools_;
  Shape shape_;
  kernels::cuda::DeviceBuffer y_;
  kernels::cuda::PinnedBuffer host_;
  std::map<int64_t, double> bf16_us_;  // of the baseline by M, once timed
  int wrong_ = 0;
};

// Adds it if options.paths wants it.
void AddWanted(const SweepOptions& options, Candidate candidate,
               std::vector<Candidate>& to);

}  // namespace nibble::bench
