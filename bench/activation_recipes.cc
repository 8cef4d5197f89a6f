// What 8-bit activations cost a whole model, by where their scales come from:
// perplexity of a text, and in the inputs of all linear layers the relative
// error and the share of values clipped and flushed to zero, as a Markdown
// table. Static scales are measured on another text and kept in a file beside
// the model. Weights stay as the reference backend has them, FP32.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/rounding.h"
#include "bench/rounding_backend.h"
#include "bench/run_main.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/scaling.h"
#include "model/checkpoint.h"
#include "model/tokenizer.h"
#include "tools/perplexity/log_softmax.h"
#include "tools/perplexity/statistics.h"
#include "tools/perplexity/text_tokens.h"
#include "tools/perplexity/window_runner.h"

namespace nibble::bench {
namespace {

using kernels::ActivationMaxima;
using kernels::Fp8;
using kernels::Int8Range;
using kernels::TensorScale;
using tools::PerplexityStatistics;

constexpr int kExitUsage = 2;
// Of the delayed recipe, steps.
constexpr int kHistory = 16;

struct Options {
  std::string model;
  std::string calibration, text;  // paths
  std::string maxima;             // path
  int32_t context = 128;
  int32_t windows = 2;
  int threads = 1;
};

// What the inputs of linear layers lost. By value.
struct Loss {
  double error = 0, norm = 0;  // sums of squares
  kernels::reference::Losses losses;
};

// A model, and the rounding in front of its layers. Owned by main.
class Bench final {
 public:
  static absl::StatusOr<std::unique_ptr<Bench>> Create(const Options& options);

  // Runs the calibration text in FP32; the greatest magnitude of each layer.
  absl::StatusOr<ActivationMaxima> Calibrate();

  // Rounds the input of a layer, or gives it back as it is.
  using Recipe = std::function<std::optional<Rounded>(std::string_view layer,
                                                      const Matrix& x)>;
  // Runs the text, and prints a row.
  absl::Status Try(const char* name, Recipe recipe);

 private:
  explicit Bench(const Options& options) : options_(options) {}
  absl::StatusOr<PerplexityStatistics> RunText(const std::string& path);
  void Round(std::string_view layer, Matrix& x);

  const Options& options_;
  Recipe recipe_;
  Loss loss_;
  std::unique_ptr<model::Checkpoint> checkpoint_;
  std::unique_ptr<model::Tokenizer> tokenizer_;
  std::unique_ptr<RoundingBackend> backend_;
  std::unique_ptr<tools::WindowRunner> runner_;
};

absl::StatusOr<std::unique_ptr<Bench>> Bench::Create(const Options& options) {
  std::unique_ptr<Bench> bench(new Bench(options));
  NIBBLE_ASSIGN_OR_RETURN(bench->checkpoint_,
                          model::Checkpoint::Open(options.model));
  NIBBLE_ASSIGN_OR_RETURN(
      bench->tokenizer_,
      model::Tokenizer::Create(bench->checkpoint_->tokenizer()));
  bench->backend_ = std::make_unique<RoundingBackend>(
      kernels::MakeReferenceBackend({.threads = options.threads}),
      [bench = bench.get()](std::string_view layer, Matrix& x) {
        bench->Round(layer, x);
      });
  NIBBLE_ASSIGN_OR_RETURN(
      bench->runner_,
      tools::WindowRunner::Create(*bench->checkpoint_, *bench->backend_,
                                  options.context));
  return bench;
}

void Bench::Round(std::string_view layer, Matrix& x) {
  std::optional<Rounded> rounded = recipe_(layer, x);
  if (!rounded.has_value()) return;
  for (size_t i = 0; i < x.data.size(); ++i) {
    const double error = double{rounded->values.data[i]} - x.data[i];
    loss_.error += error * error;
    loss_.norm += double{x.data[i]} * x.data[i];
  }
  loss_.losses += rounded->losses;
  x = std::move(rounded->values);
}

absl::StatusOr<PerplexityStatistics> Bench::RunText(const std::string& path) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                          tools::TokenizeFile(path, *tokenizer_));
  const int64_t wanted = int64_t{options_.windows} * options_.context;
  if (static_cast<int64_t>(tokens.size()) < wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", tokens.size(), " tokens, needs ",
                     options_.windows, " windows of ", options_.context));
  }
  PerplexityStatistics statistics;
  for (int32_t window = 0; window < options_.windows; ++window) {
    const auto begin = tokens.begin() + int64_t{window} * options_.context;
    const std::vector<int32_t> part(begin, begin + options_.context);
    runner_->Run(part, options_.context / 2,
                 [&](int32_t position, std::span<const float> logits) {
                   statistics.Add(logits, tools::ComputeLogSoftmax(logits),
                                  part[position + 1]);
                 });
  }
  return statistics;
}

absl::StatusOr<ActivationMaxima> Bench::Calibrate() {
  ActivationMaxima maxima;
  recipe_ = [&maxima](std::string_view layer,
                      const Matrix& x) -> std::optional<Rounded> {
    maxima.Observe(layer, GreatestOf(x.data));
    return std::nullopt;
  };
  NIBBLE_RETURN_IF_ERROR(RunText(options_.calibration).status());
  return maxima;
}

absl::Status Bench::Try(const char* name, Recipe recipe) {
  recipe_ = std::move(recipe);
  loss_ = {};
  NIBBLE_ASSIGN_OR_RETURN(const PerplexityStatistics statistics,
                          RunText(options_.text));
  std::printf("| %s | %.3f |", name, statistics.Perplexity().value);
  if (loss_.norm > 0) {
    const double share = 100.0 / static_cast<double>(loss_.losses.values);
    std::printf(" %.2f | %.4f | %.4f |\n",
                100 * std::sqrt(loss_.error / loss_.norm),
                share * static_cast<double>(loss_.losses.clipped),
                share * static_cast<double>(loss_.losses.flushed));
  } else {
    std::printf(" | | |\n");
  }
  std::fflush(stdout);
  return absl::OkStatus();
}

// E4M3 with one scale for all of a layer's input, from `scales` by layer;
// `make` makes that of a layer not seen before.
Bench::Recipe ByTensor(std::function<TensorScale(std::string_view)> make) {
  auto scales = std::make_shared<std::map<std::string, TensorScale>>();
  return [scales, make = std::move(make)](std::string_view layer,
                                          const Matrix& x) {
    const auto at = scales->try_emplace(std::string(layer), make(layer)).first;
    return RoundFp8(x, Fp8::kE4m3, {x.rows, x.cols}, [at](float greatest) {
      return at->second.ScaleFor(greatest);
    });
  };
}

// E4M3 with a scale for each tile from its own values; cols = 0: whole rows.
Bench::Recipe ByTile(int64_t cols) {
  return [cols](std::string_view /*layer*/, const Matrix& x) {
    return RoundFp8(x, Fp8::kE4m3, {1, cols > 0 ? cols : x.cols},
                    CurrentScale(Fp8::kE4m3));
  };
}

absl::Status Run(const Options& options) {
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench,
                          Bench::Create(options));
  {
    NIBBLE_ASSIGN_OR_RETURN(const ActivationMaxima maxima, bench->Calibrate());
    NIBBLE_RETURN_IF_ERROR(maxima.Save(options.maxima));
  }
  NIBBLE_ASSIGN_OR_RETURN(const ActivationMaxima maxima,
                          ActivationMaxima::Load(options.maxima));
  std::printf(
      "| Activations | Perplexity | Error, %% | Clipped, %% | Flushed to zero, "
      "%% |\n|---|---:|---:|---:|---:|\n");
  const auto fixed = [&maxima](float factor) {
    return ByTensor([&maxima, factor](std::string_view layer) {
      return TensorScale::Static(Fp8::kE4m3,
                                 factor * maxima.Find(layer).value());
    });
  };
  const auto none = [](std::string_view, const Matrix&) {
    return std::optional<Rounded>();
  };
  NIBBLE_RETURN_IF_ERROR(bench->Try("FP32", none));
  NIBBLE_RETURN_IF_ERROR(
      bench->Try("E4M3, tensor, current", ByTensor([](std::string_view) {
                   return TensorScale::Current(Fp8::kE4m3);
                 })));
  NIBBLE_RETURN_IF_ERROR(
      bench->Try("E4M3, tensor, delayed", ByTensor([](std::string_view) {
                   return TensorScale::Delayed(Fp8::kE4m3, kHistory);
                 })));
  NIBBLE_RETURN_IF_ERROR(
      bench->Try("E4M3, tensor, static, of the other text", fixed(1)));
  NIBBLE_RETURN_IF_ERROR(
      bench->Try("E4M3, tensor, static, 4 times too small", fixed(0.25f)));
  NIBBLE_RETURN_IF_ERROR(bench->Try("E4M3, token", ByTile(0)));
  NIBBLE_RETURN_IF_ERROR(
      bench->Try("E4M3, 1x128", ByTile(kernels::kScaleBlock)));
  NIBBLE_RETURN_IF_ERROR(
      bench->Try("INT8, token", [](std::string_view, const Matrix& x) {
        return RoundInt8(x, Int8Range::kSymmetric, x.cols);
      }));
  return bench->Try("INT8, token, asymmetric",
                    [](std::string_view, const Matrix& x) {
                      return RoundInt8(x, Int8Range::kAsymmetric, x.cols);
                    });
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app{
      "Perplexity of a model whose linear layers see 8-bit activations, for "
      "every recipe for their scales"};
  app.add_option("--model", options.model, "GGUF file")->required();
  app.add_option("--calibration", options.calibration,
                 "Text that static scales are measured on")
      ->required();
  app.add_option("--text", options.text, "Text that all recipes are tried on")
      ->required();
  app.add_option("--maxima", options.maxima,
                 "File to keep the greatest magnitudes of the calibration in; "
                 "by default the model's name with .maxima behind it");
  app.add_option("--context", options.context, "Tokens of a window")
      ->check(CLI::Range(4, 1 << 16))
      ->capture_default_str();
  app.add_option("--windows", options.windows, "Windows of each text")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "CPU threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? EXIT_SUCCESS : kExitUsage;
  }
  if (options.maxima.empty()) options.maxima = options.model + ".maxima";
  const absl::Status status = Run(options);
  if (status.ok()) return EXIT_SUCCESS;
  std::fprintf(stderr, "bench_activation_recipes: %s\n",
               std::string(status.message()).c_str());
  return EXIT_FAILURE;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  return nibble::bench::RunMain("bench_activation_recipes", nibble::bench::Main,
                                argc, argv);
}
