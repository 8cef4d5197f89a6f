// How much of the memory's bandwidth a model's decode steps use: steps of one
// sequence and reads of as many bytes as the model's file has, in turn, so that
// both meet the memory in the same state.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/functional/function_ref.h"
#include "base/checked_math.h"
#include "bench/cpu_peaks.h"
#include "bench/run_main.h"
#include "engine/load.h"
#include "kernels/cpu/cpu_count.h"
#include "model/batch.h"

namespace nibble::bench {
namespace {

constexpr int32_t kPageTokens = 16;

struct Options {
  std::string model;
  int threads = 0;
  int rounds = 15;
  int32_t steps = 4;  // of a round
};

// One sequence on a runner, a token a step. A local of Main.
class Decoder final {
 public:
  Decoder(engine::ModelRunner& runner, int32_t tokens) : runner_(runner) {
    for (int32_t i = 0; i < DivideUp(tokens, kPageTokens); ++i) {
      pages_.push_back(i);
    }
    result_.token = 0;
  }

  void Step() {
    batch_.Clear();
    batch_.decode_rows = 1;
    batch_.tokens = {result_.token};
    batch_.positions = {position_};
    batch_.slots = {position_};
    batch_.row_begin.push_back(1);
    batch_.page_ids.assign(pages_.begin(),
                           pages_.begin() + position_ / kPageTokens + 1);
    batch_.page_begin.push_back(static_cast<int32_t>(batch_.page_ids.size()));
    batch_.logit_rows = {0};
    const kernels::SampleRow row{.params = &greedy_};
    runner_.Step(batch_, {&row, 1}, {&result_, 1});
    ++position_;
  }

 private:
  engine::ModelRunner& runner_;
  const kernels::SamplingParams greedy_;
  std::vector<int32_t> pages_;
  model::Batch batch_;
  kernels::SampleResult result_;
  int32_t position_ = 0;
};

double Seconds(absl::FunctionRef<void()> body) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

int Run(const Options& options) {
  const int threads =
      options.threads > 0 ? options.threads : kernels::cpu::UsableCpus();
  const int32_t tokens = (options.rounds + 1) * options.steps;
  const auto runner = engine::LoadRunner(
      options.model, {.device = kernels::Device::kCpu,
                      .threads = threads,
                      .kv_pages = DivideUp(tokens, kPageTokens),
                      .page_size = kPageTokens,
                      .max_sequences = 1});
  if (!runner.ok()) {
    std::fprintf(stderr, "%s\n", runner.status().ToString().c_str());
    return 1;
  }
  const auto bytes =
      static_cast<int64_t>(std::filesystem::file_size(options.model));
  MemoryReader reader(threads, bytes);
  Decoder decoder(**runner, tokens);
  const auto decode = [&] {
    for (int32_t i = 0; i < options.steps; ++i) decoder.Step();
  };
  decode();                                            // page faults, caches
  std::vector<double> step_rates, read_rates, shares;  // GB/s
  for (int round = 0; round < options.rounds; ++round) {
    const double gigabytes = static_cast<double>(bytes) * 1e-9;
    const double before =
        Seconds([&] { reader.Read(MemoryReader::Ahead::kAsked); });
    const double step = Seconds(decode) / options.steps;
    const double after =
        Seconds([&] { reader.Read(MemoryReader::Ahead::kHardware); });
    read_rates.push_back(gigabytes / std::min(before, after));
    step_rates.push_back(gigabytes / step);
    shares.push_back(100 * step_rates.back() / read_rates.back());
    std::printf("round %2d: read %6.1f GB/s, steps %6.1f GB/s, %3.0f%%\n",
                round, read_rates.back(), step_rates.back(), shares.back());
  }
  std::printf(
      "%s, file of %.3f GB: %.1f tokens/s; medians: read %.1f "
      "GB/s, "
      "steps %.1f GB/s, %.0f%% of the read of the same round\n",
      (*runner)->info().device.c_str(), static_cast<double>(bytes) * 1e-9,
      Median(step_rates) / (static_cast<double>(bytes) * 1e-9),
      Median(read_rates), Median(step_rates), Median(shares));
  return 0;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Share of the memory's bandwidth that decode steps use");
  app.add_option("--model", options.model, "GGUF file")->required();
  app.add_option("--threads", options.threads, "0: all the process may use");
  app.add_option("--rounds", options.rounds, "steps and reads in turn")
      ->check(CLI::Range(1, 1000));
  app.add_option("--steps", options.steps, "decode steps of a round")
      ->check(CLI::Range(1, 100));
  CLI11_PARSE(app, argc, argv);
  return Run(options);
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  return nibble::bench::RunMain("bench_decode", nibble::bench::Main, argc,
                                argv);
}
