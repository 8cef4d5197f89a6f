// nibble-perplexity: how well a model predicts a text, and how far it is from
// a base model. The protocol is llama-perplexity's: the text is cut into
// windows of `context` tokens, each computed from an empty context (its first
// token replaced by BOS where the vocabulary adds one), and the tokens of the
// second half of each window are scored.
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/device.h"
#include "model/checkpoint.h"
#include "model/tokenizer.h"
#include "nlohmann/json.hpp"
#include "tools/perplexity/kl_base_file.h"
#include "tools/perplexity/log_softmax.h"
#include "tools/perplexity/statistics.h"
#include "tools/perplexity/text_tokens.h"
#include "tools/perplexity/window_runner.h"

namespace nibble::tools {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

struct Options {
  std::string model;
  std::string text;     // path; may be empty with kl_base
  std::string kl_base;  // path or empty
  std::string device = "auto";
  int32_t context = 512;
  int32_t threads = 0;
  bool json = false;
};

// The text's windows: tokens [windows * context].
struct Windows {
  int32_t context = 0;
  std::vector<int32_t> tokens;

  int32_t count() const {
    return static_cast<int32_t>(tokens.size()) / context;
  }
};

absl::StatusOr<Windows> WindowsOfText(const Options& options,
                                      const model::Tokenizer& tokenizer) {
  NIBBLE_ASSIGN_OR_RETURN(std::vector<int32_t> tokens,
                          TokenizeFile(options.text, tokenizer));
  if (tokens.size() < 2 * static_cast<size_t>(options.context)) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.text, ": has ", tokens.size(), " tokens, needs at least two ",
        "windows of --context = ", options.context));
  }
  tokens.resize(tokens.size() - tokens.size() % options.context);
  return Windows{options.context, std::move(tokens)};
}

// The base file's windows; a text given as well must be the one it was made
// of.
absl::StatusOr<Windows> WindowsOfBase(const Options& options,
                                      const model::Tokenizer& tokenizer,
                                      const KlBaseFile& base) {
  if (base.vocab() != tokenizer.vocab_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.kl_base, ": vocabulary of ", base.vocab(),
                     " tokens, but the model has ", tokenizer.vocab_size()));
  }
  if (!options.text.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                            TokenizeFile(options.text, tokenizer));
    for (size_t i = 0; i < base.tokens().size(); ++i) {
      const int32_t ours = i < tokens.size() ? tokens[i] : -1;
      if (ours == base.tokens()[i]) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          options.kl_base, ": was made of another text than ", options.text,
          ": token ", i, " is ", base.tokens()[i], " there, ", ours, " here"));
    }
  }
  return Windows{base.context(), base.tokens()};
}

// Prints how far a run is, on stderr; on a terminal in place.
class Progress final {
 public:
  explicit Progress(int32_t windows)
      : windows_(windows), terminal_(isatty(STDERR_FILENO) != 0) {}

  void Report(int32_t done, double perplexity) const {
    const double seconds =
        std::chrono::duration<double>(Clock::now() - start_).count();
    std::fprintf(stderr, "%swindow %d/%d  perplexity %.4f  eta %.0f s%s",
                 terminal_ ? "\r" : "", done, windows_, perplexity,
                 seconds / done * (windows_ - done),
                 terminal_ && done < windows_ ? "   " : "   \n");
  }

 private:
  using Clock = std::chrono::steady_clock;
  int32_t windows_;
  bool terminal_;
  Clock::time_point start_ = Clock::now();
};

struct Result {
  PerplexityStatistics perplexity;
  std::optional<KlStatistics> kl;
};

absl::StatusOr<Result> Evaluate(const Windows& windows,
                                std::optional<int32_t> bos,
                                WindowRunner& runner, KlBaseFile* base) {
  Result result;
  if (base != nullptr) result.kl.emplace();
  const Progress progress(windows.count());
  const int32_t first = windows.context / 2;
  for (int32_t window = 0; window < windows.count(); ++window) {
    if (base != nullptr) NIBBLE_RETURN_IF_ERROR(base->ReadWindow(window));
    const auto begin =
        windows.tokens.begin() + static_cast<int64_t>(window) * windows.context;
    std::vector<int32_t> tokens(begin, begin + windows.context);
    if (bos) tokens[0] = *bos;
    bool finite = true;
    runner.Run(tokens, first,
               [&](int32_t position, std::span<const float> logits) {
                 const LogSoftmax softmax = ComputeLogSoftmax(logits);
                 const int32_t target = tokens[position + 1];
                 finite = finite && std::isfinite(softmax.log_sum);
                 result.perplexity.Add(logits, softmax, target);
                 if (base != nullptr) {
                   result.kl->Add(logits, softmax, target,
                                  base->Row(position - first));
                 }
               });
    if (!finite) {
      return absl::DataLossError(absl::StrCat("the model's logits in window ",
                                              window, " are not finite"));
    }
    progress.Report(window + 1, result.perplexity.Perplexity().value);
  }
  return result;
}

absl::Status CheckContext(const Windows& windows,
                          const model::ModelConfig& config) {
  if (windows.context > config.context_length) {
    return absl::InvalidArgumentError(
        absl::StrCat("context = ", windows.context, " exceeds the model's ",
                     config.context_length, " tokens"));
  }
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  NIBBLE_ASSIGN_OR_RETURN(
      const std::unique_ptr<kernels::Backend> backend,
      kernels::MakeBackend(*kernels::DeviceByName(options.device),
                           options.threads));
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<model::Checkpoint> checkpoint,
                          model::Checkpoint::Open(options.model));
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<model::Tokenizer> tokenizer,
                          model::Tokenizer::Create(checkpoint->tokenizer()));
  std::unique_ptr<KlBaseFile> base;
  if (!options.kl_base.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(base, KlBaseFile::Open(options.kl_base));
  }
  NIBBLE_ASSIGN_OR_RETURN(const Windows windows,
                          base ? WindowsOfBase(options, *tokenizer, *base)
                               : WindowsOfText(options, *tokenizer));
  NIBBLE_RETURN_IF_ERROR(CheckContext(windows, checkpoint->config()));
  NIBBLE_ASSIGN_OR_RETURN(
      const std::unique_ptr<WindowRunner> runner,
      WindowRunner::Create(*checkpoint, *backend, windows.context));
  std::fprintf(stderr, "%s on %s (%s): %d windows of %d tokens\n",
               options.model.c_str(), backend->name().c_str(),
               backend->description().c_str(), windows.count(),
               windows.context);
  const std::optional<int32_t> bos =
      tokenizer->adds_bos() ? tokenizer->bos() : std::nullopt;
  NIBBLE_ASSIGN_OR_RETURN(const Result result,
                          Evaluate(windows, bos, *runner, base.get()));
  const KlStatistics* kl = result.kl ? &*result.kl : nullptr;
  if (options.json) {
    nlohmann::json json = ToJson(result.perplexity, kl);
    json["model"] = options.model;
    json["backend"] = backend->name();
    json["context"] = windows.context;
    json["windows"] = windows.count();
    std::printf("%s\n", json.dump().c_str());
  } else {
    std::printf("%s", ToText(result.perplexity, kl).c_str());
  }
  return absl::OkStatus();
}

void AddOptions(CLI::App& app, Options& options) {
  app.add_option("--model", options.model, "GGUF file")->required();
  app.add_option("--text", options.text,
                 "Text file (UTF-8). With --kl-base it is optional and must "
                 "be the text the base file was made of");
  app.add_option("--context", options.context,
                 "Tokens of a window; with --kl-base the file's is taken")
      ->capture_default_str()
      ->check(CLI::Range(4, 1 << 20));
  app.add_option("--kl-base", options.kl_base,
                 "File written by llama-perplexity --kl-divergence-base: "
                 "report the KL divergence from that model");
  app.add_option("--device", options.device, "auto, cpu, reference or cuda")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "cpu", "reference", "cuda"}));
  app.add_option("--threads", options.threads,
                 "CPU threads; 0: the cores this process may use")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  app.add_flag("--json", options.json, "Print the result as one JSON object");
}

int Main(int argc, char** argv) {
  CLI::App app(
      "nibble-perplexity: perplexity of a model over a text, and its KL "
      "divergence from a base model",
      "nibble-perplexity");
  app.set_version_flag("--version", NIBBLE_VERSION);
  Options options;
  AddOptions(app, options);
  try {
    app.parse(argc, argv);
    if (options.text.empty() && options.kl_base.empty()) {
      throw CLI::RequiredError("--text or --kl-base");
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  const absl::Status status = Run(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "nibble-perplexity: %s\n",
               std::string(status.message()).c_str());
  return kExitFailed;
}

}  // namespace
}  // namespace nibble::tools

int main(int argc, char** argv) { return nibble::tools::Main(argc, argv); }
