// nibble-inspect: what a model file holds, and whether it can be served.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "absl/status/status.h"
#include "model/gguf.h"
#include "model/mapped_file.h"
#include "tools/inspect/report.h"

namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

struct Options {
  std::string path;
  bool json = false;
  bool tensors = false;
  bool keys = false;
};

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "nibble-inspect: %s\n",
               std::string(status.message()).c_str());
  return kFailed;
}

// Prints all that can be said even of a file that cannot be served; its fault
// is then the exit code's.
int Inspect(const Options& options) {
  const auto mapped = nibble::model::MappedFile::Open(options.path);
  if (!mapped.ok()) return Fail(mapped.status());
  const auto file =
      nibble::model::GgufFile::Parse((*mapped)->bytes(), options.path);
  if (!file.ok()) return Fail(file.status());
  const nibble::inspect::Report report = nibble::inspect::MakeReport(
      *file, (*mapped)->bytes().size(),
      {.tensors = options.tensors, .keys = options.keys});
  const std::string text = options.json ? nibble::inspect::ToJson(report)
                                        : nibble::inspect::ToText(report);
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
    return Fail(absl::UnknownError("cannot write to standard output"));
  }
  return report.servable.ok() ? 0 : Fail(report.servable);
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app(
      "nibble-inspect: architecture, tokenizer, formats and sizes of a GGUF "
      "model file",
      "nibble-inspect");
  Options options;
  app.set_version_flag("--version", NIBBLE_VERSION);
  app.add_option("file", options.path, "Model file (GGUF)")->required();
  app.add_flag("--json", options.json, "Print one JSON object");
  app.add_flag("--tensors", options.tensors, "List every tensor");
  app.add_flag("--keys", options.keys, "List every metadata key");
  app.footer(
      "Exit codes: 0 the file can be served; 1 it cannot, and why is on "
      "standard error; 2 command line.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  return Inspect(options);
} catch (const std::exception& error) {
  std::fprintf(stderr, "nibble-inspect: %s\n", error.what());
  return kFailed;
}
