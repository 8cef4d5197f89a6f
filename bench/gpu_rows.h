// The rows that bench_kernels prints and appends to a CSV file.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include "absl/status/statusor.h"
#include "bench/gpu_monitor.h"

namespace nibble::bench {

// One path at one M, shape and format. By value.
struct Row {
  std::string path;
  std::string format;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  std::string choice;  // the LaunchSpec or algorithm, for people
  double us_cold = 0;  // one launch, L2 cold
  // A graph's node, rotating weights, overlapping; 0: not measured.
  double us_graph = 0;
  double us_graph_plain = 0;  // the same without overlap
  double us_load_node = 0;    // a node that only reads the weights, overlapping
  int64_t bytes = 0;          // weights, x and y
  double pct_peak = 0;
  double floor_us = 0;  // reading the weights once, L2 cold
  double bf16_us = 0;   // cuBLASLt, 16-bit weights, cold; 0: not measured
  double rel_err = 0;
  bool wrong = false;        // rel_err is too large: nothing was timed
  Condition cold = {};       // while us_cold was measured
  double us_sustained = 0;   // a launch of many back to back; 0: not measured
  Condition sustained = {};  // while us_sustained was measured

  double gbps() const { return 1e-3 * static_cast<double>(bytes) / us_cold; }
  double tflops() const {
    return 2e-6 * static_cast<double>(m) * static_cast<double>(n) *
           static_cast<double>(k) / us_cold;
  }
};

// What all rows of a run share.
struct RunLabels {
  std::string gpu;
  std::string commit;
};

// The CSV file, if one was asked for. Move-only; owned by main.
class CsvFile final {
 public:
  // Appends to `path`, with a header line if it is new or empty; an empty path
  // writes nothing. FAILED_PRECONDITION when its header is another one.
  static absl::StatusOr<CsvFile> Open(const std::string& path,
                                      const RunLabels& labels);
  void Write(const Row& row);

 private:
  std::ofstream file_;
  RunLabels labels_;
};

// One line of text on stdout.
void Print(const Row& row);

}  // namespace nibble::bench
