#include "bench/gpu_rows.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace nibble::bench {
namespace {

constexpr char kHeader[] =
    "path,format,m,n,k,us_cold,us_graph,gbps,tflops,pct_peak,floor_us,bf16_us,"
    "rel_err,mhz_cold,watts_cold,us_sustained,mhz_sustained,watts_sustained,"
    "gpu,commit";

// Empty for what was not measured.
std::string Measured(const absl::FormatSpec<double>& format, double value) {
  return value > 0 ? absl::StrFormat(format, value) : "";
}

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
  const std::string cold =
      row.wrong ? "error,,,,"
                : absl::StrFormat("%.2f,%s,%.1f,%.2f,%.1f", row.us_cold,
                                  Measured("%.2f", row.us_graph), row.gbps(),
                                  row.tflops(), row.pct_peak);
  const std::string fields[] = {row.path,
                                row.format,
                                absl::StrCat(row.m),
                                absl::StrCat(row.n),
                                absl::StrCat(row.k),
                                cold,
                                absl::StrFormat("%.2f", row.floor_us),
                                Measured("%.2f", row.bf16_us),
                                absl::StrFormat("%.3g", row.rel_err),
                                Measured("%.0f", row.cold.sm_mhz),
                                Measured("%.0f", row.cold.watts),
                                Measured("%.2f", row.us_sustained),
                                Measured("%.0f", row.sustained.sm_mhz),
                                Measured("%.0f", row.sustained.watts),
                                labels_.gpu,
                                labels_.commit};
  file_ << absl::StrJoin(fields, ",") << std::endl;
}

void Print(const Row& row) {
  std::string text = absl::StrFormat("%-22s %-9s %5dx%-5d M %-5d ", row.path,
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
    text += ")";
    if (row.us_graph > 0) {
      absl::StrAppendFormat(
          &text, ", node %8.2f us, plain %8.2f (%5.2f of loading's %.2f)",
          row.us_graph, row.us_graph_plain, row.us_graph / row.us_load_node,
          row.us_load_node);
    }
    absl::StrAppendFormat(&text, ", %6.0f GB/s %6.1f TFLOP/s %5.1f%%",
                          row.gbps(), row.tflops(), row.pct_peak);
    if (row.us_sustained > 0) {
      absl::StrAppendFormat(&text, ", sustained %8.2f us at %.0f MHz, %.0f W",
                            row.us_sustained, row.sustained.sm_mhz,
                            row.sustained.watts);
    }
    absl::StrAppendFormat(&text, ", error %.1e", row.rel_err);
  }
  std::printf("%s  [%s]\n", text.c_str(), row.choice.c_str());
  std::fflush(stdout);
}

}  // namespace nibble::bench
