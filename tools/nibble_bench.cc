// nibble-bench: tokens per second of a model, without scheduler and server.
// Drives the engine's runner (forward and greedy sampling) directly: first
// the prompts of all sequences, in steps of at most --max-batch-rows rows,
// then --decode steps of one row a sequence.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/status.h"
#include "engine/load.h"
#include "kernels/cpu/cpu_count.h"
#include "kernels/cpu/target.h"
#include "kernels/device.h"
#include "model/batch.h"
#include "nlohmann/json.hpp"
#include "tools/machine.h"

namespace nibble::tools {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr int32_t kPageTokens = 16;

struct Options {
  std::string model;
  int32_t prefill = 512;
  int32_t decode = 128;
  int32_t batch = 1;
  int32_t threads = 0;
  int32_t repetitions = 5;
  int32_t max_batch_rows = 512;
  std::string device = "auto";
  std::string cpu_target;
  bool json = false;
};

// Seconds of one repetition; 0 for a phase that was not asked for.
struct Measurement {
  double prefill_seconds = 0;
  double decode_seconds = 0;
};

// Sequences of random tokens on a runner. A local of Run.
class Bench final {
 public:
  Bench(engine::ModelRunner& runner, const Options& options)
      : runner_(runner),
        options_(options),
        pages_each_(DivideUp(options.prefill + options.decode, kPageTokens)),
        last_tokens_(options.batch) {}

  Measurement Repeat(uint64_t seed) {
    random_.seed(seed);
    for (int32_t& token : last_tokens_) token = RandomToken();
    Measurement measurement;
    measurement.prefill_seconds = Seconds([this] { Prefill(); });
    measurement.decode_seconds = Seconds([this] { Decode(); });
    return measurement;
  }

 private:
  template <typename Body>
  static double Seconds(Body body) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    body();
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  int32_t RandomToken() {
    return static_cast<int32_t>(random_() % runner_.info().vocab_size);
  }

  // Appends tokens at positions [first, first + count) of a sequence: its
  // last token if it is one, else random ones.
  void Append(int32_t sequence, int32_t first, int32_t count) {
    for (int32_t position = first; position < first + count; ++position) {
      batch_.tokens.push_back(count == 1 ? last_tokens_[sequence]
                                         : RandomToken());
      batch_.positions.push_back(position);
      // Every sequence has consecutive pages of its own.
      batch_.slots.push_back(int64_t{sequence} * pages_each_ * kPageTokens +
                             position);
    }
    batch_.row_begin.push_back(batch_.rows());
    const int32_t pages = DivideUp(first + count, kPageTokens);
    for (int32_t page = 0; page < pages; ++page) {
      batch_.page_ids.push_back(sequence * pages_each_ + page);
    }
    batch_.page_begin.push_back(static_cast<int32_t>(batch_.page_ids.size()));
  }

  // Runs the batch; `sampling` are the sequences whose last row it holds.
  void Step(const std::vector<int32_t>& sampling) {
    const std::vector<kernels::SampleRow> rows(sampling.size(),
                                               {.params = &greedy_});
    results_.resize(sampling.size());
    runner_.Step(batch_, rows, results_);
    for (size_t i = 0; i < sampling.size(); ++i) {
      last_tokens_[sampling[i]] = results_[i].token;
    }
  }

  void Prefill() {
    std::vector<int32_t> sampling;
    batch_.Clear();
    for (int32_t sequence = 0; sequence < options_.batch; ++sequence) {
      for (int32_t first = 0; first < options_.prefill;) {
        const int32_t room = options_.max_batch_rows - batch_.rows();
        const int32_t count = std::min(room, options_.prefill - first);
        Append(sequence, first, count);
        first += count;
        if (first == options_.prefill) {
          sampling.push_back(sequence);
          batch_.logit_rows.push_back(batch_.rows() - 1);
        }
        if (batch_.rows() < options_.max_batch_rows) continue;
        Step(sampling);
        batch_.Clear();
        sampling.clear();
      }
    }
    if (batch_.rows() > 0) Step(sampling);
  }

  void Decode() {
    std::vector<int32_t> sampling(options_.batch);
    std::iota(sampling.begin(), sampling.end(), 0);
    for (int32_t step = 0; step < options_.decode; ++step) {
      batch_.Clear();
      for (const int32_t sequence : sampling) {
        batch_.logit_rows.push_back(sequence);
        Append(sequence, options_.prefill + step, 1);
      }
      batch_.decode_rows = batch_.rows();
      Step(sampling);
    }
  }

  engine::ModelRunner& runner_;
  const Options& options_;
  const int32_t pages_each_;
  const kernels::SamplingParams greedy_;
  std::mt19937_64 random_;
  std::vector<int32_t> last_tokens_;  // [batch]
  model::Batch batch_;
  std::vector<kernels::SampleResult> results_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle]
                                : (values[middle - 1] + values[middle]) / 2;
}

// Tokens per second over the repetitions.
struct Rate {
  double median = 0;
  double least = 0;
  double greatest = 0;
};

Rate RateOf(int64_t tokens, const std::vector<double>& seconds) {
  std::vector<double> rates;
  rates.reserve(seconds.size());
  for (const double s : seconds) rates.push_back(tokens / s);
  const auto [least, greatest] =
      std::minmax_element(rates.begin(), rates.end());
  return {Median(rates), *least, *greatest};
}

nlohmann::json ToJson(const Rate& rate) {
  return {{"tokens_per_second", rate.median},
          {"least", rate.least},
          {"greatest", rate.greatest}};
}

void PrintRate(const char* name, int64_t tokens, const Rate& rate) {
  std::printf("%-8s %8lld tokens  %10.1f tokens/s  (%.1f to %.1f)\n", name,
              static_cast<long long>(tokens), rate.median, rate.least,
              rate.greatest);
}

void Report(const Options& options, const engine::RunnerInfo& info,
            const std::vector<Measurement>& measurements) {
  std::vector<double> prefill;
  std::vector<double> decode;
  for (const Measurement& m : measurements) {
    prefill.push_back(m.prefill_seconds);
    decode.push_back(m.decode_seconds);
  }
  const int64_t prefill_tokens = int64_t{options.batch} * options.prefill;
  const int64_t decode_tokens = int64_t{options.batch} * options.decode;
  nlohmann::json json = {
      {"model", options.model},
      {"name", info.name},
      {"file_type", info.file_type},
      {"parameters", info.parameters},
      {"machine", MachineName()},
      {"backend", info.backend},
      {"device", info.device},
      {"threads",
       options.threads > 0 ? options.threads : kernels::cpu::UsableCpus()},
      {"batch", options.batch},
      {"prefill", options.prefill},
      {"decode", options.decode},
      {"max_batch_rows", options.max_batch_rows},
      {"repetitions", options.repetitions}};
  if (!options.json) {
    std::printf("model    %s (%s, %s)\n", options.model.c_str(),
                info.name.c_str(), info.file_type.c_str());
    std::printf("machine  %s\n", MachineName().c_str());
    std::printf("backend  %s: %s\n", info.backend.c_str(), info.device.c_str());
    std::printf("batch    %d x (%d prefill + %d decode), median of %d\n",
                options.batch, options.prefill, options.decode,
                options.repetitions);
  }
  if (options.prefill > 0) {
    const Rate rate = RateOf(prefill_tokens, prefill);
    json["prefill_rate"] = ToJson(rate);
    if (!options.json) PrintRate("prefill", prefill_tokens, rate);
  }
  if (options.decode > 0) {
    const Rate rate = RateOf(decode_tokens, decode);
    json["decode_rate"] = ToJson(rate);
    if (!options.json) PrintRate("decode", decode_tokens, rate);
  }
  if (options.json) std::printf("%s\n", json.dump().c_str());
}

absl::Status CheckFits(const Options& options, const engine::RunnerInfo& info) {
  const int32_t tokens = options.prefill + options.decode;
  if (tokens > info.context_length) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--prefill + --decode = ", tokens, " exceeds the model's context of ",
        info.context_length, " tokens"));
  }
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  const int32_t pages_each =
      DivideUp(options.prefill + options.decode, kPageTokens);
  NIBBLE_ASSIGN_OR_RETURN(
      const std::unique_ptr<engine::ModelRunner> runner,
      engine::LoadRunner(options.model,
                         {.device = *kernels::DeviceByName(options.device),
                          .threads = options.threads,
                          .kv_pages = options.batch * pages_each,
                          .page_size = kPageTokens,
                          .max_batch_rows = options.max_batch_rows,
                          .max_sequences = options.batch}));
  NIBBLE_RETURN_IF_ERROR(CheckFits(options, runner->info()));
  Bench bench(*runner, options);
  std::vector<Measurement> measurements;
  // Repetition 0 warms up: page faults, caches, clock rates.
  for (int32_t i = 0; i <= options.repetitions; ++i) {
    const Measurement measurement = bench.Repeat(i);
    if (i > 0) measurements.push_back(measurement);
    std::fprintf(stderr, "repetition %d/%d%s: prefill %.3f s, decode %.3f s\n",
                 i, options.repetitions, i == 0 ? " (warm-up)" : "",
                 measurement.prefill_seconds, measurement.decode_seconds);
  }
  Report(options, runner->info(), measurements);
  return absl::OkStatus();
}

void AddOptions(CLI::App& app, Options& options) {
  const auto add = [&](const char* name, auto& value, const char* help,
                       int64_t least, int64_t most) {
    app.add_option(name, value, help)
        ->capture_default_str()
        ->check(CLI::Range(least, most));
  };
  constexpr int64_t kMostTokens = 1 << 20;
  app.add_option("--model", options.model, "GGUF file")->required();
  add("--prefill", options.prefill, "Prompt tokens of a sequence; 0: none", 0,
      kMostTokens);
  add("--decode", options.decode, "Generated tokens of a sequence; 0: none", 0,
      kMostTokens);
  add("--batch", options.batch, "Sequences at once", 1, 1024);
  add("--threads", options.threads,
      "CPU threads; 0: the cores this process may use", 0, 1024);
  add("--repetitions", options.repetitions,
      "Measured runs, after one that warms up", 1, 1000);
  add("--max-batch-rows", options.max_batch_rows, "Rows of one step", 1,
      1 << 16);
  app.add_option("--device", options.device, "auto, cpu, reference or cuda")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "cpu", "reference", "cuda"}));
  app.add_option("--cpu-target", options.cpu_target,
                 "Best instruction set to use: portable, AVX2, AVX-VNNI, ... "
                 "(default: the machine's best)");
  app.add_flag("--json", options.json, "Print the result as one JSON object");
}

void LimitTarget(const Options& options) {
  if (options.cpu_target.empty()) return;
  const auto target = kernels::cpu::TargetByName(options.cpu_target);
  if (!target) {
    throw CLI::ValidationError(absl::StrCat(
        "--cpu-target: this machine cannot run '", options.cpu_target, "'"));
  }
  kernels::cpu::LimitTargets(*target);
}

// What CLI11's ranges cannot say.
void CheckTogether(const Options& options) {
  if (options.prefill + options.decode == 0) {
    throw CLI::ValidationError("--prefill and --decode are both 0");
  }
  if (options.batch > options.max_batch_rows) {
    throw CLI::ValidationError(absl::StrCat(
        "--batch = ", options.batch, " exceeds --max-batch-rows = ",
        options.max_batch_rows, ": a decode step has a row a sequence"));
  }
}

int Main(int argc, char** argv) {
  CLI::App app(
      "nibble-bench: tokens per second of a model, prefill and decode, without "
      "scheduler and server",
      "nibble-bench");
  app.set_version_flag("--version", NIBBLE_VERSION);
  Options options;
  AddOptions(app, options);
  try {
    app.parse(argc, argv);
    CheckTogether(options);
    LimitTarget(options);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  const absl::Status status = Run(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "nibble-bench: %s\n",
               std::string(status.message()).c_str());
  return kExitFailed;
}

}  // namespace
}  // namespace nibble::tools

int main(int argc, char** argv) try {
  return nibble::tools::Main(argc, argv);
} catch (const std::exception& error) {
  std::fprintf(stderr, "nibble-bench: %s\n", error.what());
  return 1;
}
