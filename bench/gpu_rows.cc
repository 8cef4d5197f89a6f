#include "bench/gpu_rows.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace nibble::bench {
namespace {

constexpr char kHeader[] =
    "path,format,m,n,k,us_cold,us_graph,gbps,tflops,pct_peak,floor_us,bf16_us,"
    "rel_err,gpu,commit";

std::string Label(std::string text) {
  std::replace(text.begin(), text.end(), ',', ' ');
  return text;
}

}  // namespace

absl::StatusOr<CsvFile> CsvFile::Open(const std::string& path,
                                      const RunLabels& labels) {
  CsvFile csv;
  csv.labels_ = {Label(labels.gpu), Label(labels.commit)};
  if (path.empty()) return csv;
  std::string first;
  std::getline(std::ifstream(path), first);
  if (!first.empty() && first != kHeader) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " starts with \"", first, "\", not with \"", kHeader, "\""));
  }
  csv.file_.open(path, std::ios::app);
  if (first.empty()) csv.file_ << kHeader << std::endl;
  if (!csv.file_.good()) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be written"));
  }
  return csv;
}

void CsvFile::Write(const Row& row) {
  if (!file_.is_open()) return;
  std::string times = "error,,,,";
  if (!row.wrong) {
    times =
        absl::StrFormat("%.2f,%.2f,%.1f,%.2f,%.1f", row.us_cold, row.us_graph,
                        row.gbps(), row.tflops(), row.pct_peak);
  }
  const std::string bf16_us =
      row.bf16_us > 0 ? absl::StrFormat("%.2f", row.bf16_us) : "";
  file_ << absl::StrFormat("%s,%s,%d,%d,%d,%s,%.2f,%s,%.3g,%s,%s", row.path,
                           row.format, row.m, row.n, row.k, times, row.floor_us,
                           bf16_us, row.rel_err, labels_.gpu, labels_.commit)
        << std::endl;
}

void Print(const Row& row) {
  std::string text = absl::StrFormat("%-11s %-9s %5dx%-5d M %-4d ", row.path,
                                     row.format, row.n, row.k, row.m);
  if (row.wrong) {
    absl::StrAppendFormat(&text, "ERROR: relative error %.3g", row.rel_err);
  } else {
    absl::StrAppendFormat(&text, "%8.2f us cold (%5.2f floors", row.us_cold,
                          row.us_cold / row.floor_us);
    if (row.bf16_us > 0) {
      absl::StrAppendFormat(&text, ", %5.2fx 16-bit",
                            row.bf16_us / row.us_cold);
    }
    absl::StrAppendFormat(
        &text,
        "), node %8.2f us, plain %8.2f (%5.2f of loading's %.2f), %6.0f GB/s "
        "%6.1f TFLOP/s %5.1f%%, error %.1e",
        row.us_graph, row.us_graph_plain, row.us_graph / row.us_load_node,
        row.us_load_node, row.gbps(), row.tflops(), row.pct_peak, row.rel_err);
  }
  std::printf("%s  [%s]\n", text.c_str(), row.choice.c_str());
  std::fflush(stdout);
}

}  // namespace nibble::bench
