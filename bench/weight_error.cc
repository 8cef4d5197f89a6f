// What a weight format costs in accuracy: ||w - q(w)|| / ||w|| of normally
// distributed weights, rounded once by the simplest quantizer of each format
// (no calibration, no search), as a Markdown table.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "bench/run_main.h"
#include "kernels/quant_format.h"
#include "kernels/reference/dequant.h"
#include "kernels/weight_view.h"
#include "tests/support/minifloat.h"
#include "tests/support/quantize.h"
#include "tests/support/quantize_groups.h"
#include "tests/support/random.h"

namespace nibble::bench {
namespace {

using kernels::QuantFormat;
using test::Minifloat;

struct Options {
  int64_t n = 1024;
  int64_t k = 4096;
  uint64_t seed = 1;
};

// The matrix that every format rounds. Owned by main.
struct Weights {
  int64_t n = 0;
  int64_t k = 0;
  std::vector<float> x;  // [n, k]
};

double RelativeError(std::span<const float> x, std::span<const float> y) {
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double difference = static_cast<double>(x[i]) - y[i];
    error += difference * difference;
    norm += static_cast<double>(x[i]) * x[i];
  }
  return std::sqrt(error / norm);
}

float Greatest(std::span<const float> x) {
  float greatest = 0;
  for (const float value : x) greatest = std::max(greatest, std::fabs(value));
  return greatest;
}

void PrintRow(const std::string& format, double bits, const char* quantizer,
              double error) {
  std::printf("| %s | %.3f | %s | %.2f |\n", format.c_str(), bits, quantizer,
              100 * error);
}

// Formats that checkpoints have, through their own bits.
void PrintGroups(const Weights& w, QuantFormat format, int64_t group,
                 const char* quantizer) {
  test::Random random(1);  // orders nothing here
  const test::GroupWeight quantized = test::QuantizeGroups(
      {.format = format, .n = w.n, .k = w.k, .group = group}, w.x, random);
  const size_t bytes = quantized.data.size() + quantized.scales.size() +
                       quantized.zeros_or_mins.size();
  PrintRow(kernels::DisplayName(quantized.View()),
           8.0 * static_cast<double>(bytes) / static_cast<double>(w.x.size()),
           quantizer, RelativeError(w.x, quantized.Dequantized()));
}

void PrintBlocks(const Weights& w, QuantFormat format, const char* quantizer) {
  const test::TestWeight quantized(format, w.n, w.k, w.x);
  const kernels::FormatInfo& info = kernels::Info(format);
  PrintRow(std::string(info.name), 8.0 * info.block_bytes / info.block_elements,
           quantizer, RelativeError(w.x, quantized.Dequantized()));
}

// Rounds runs of `block` weights by round(x / scale) * scale, where
// scale = scale_of(greatest magnitude of the run).
template <typename ScaleOf, typename Round>
double BlockError(const Weights& w, int64_t block, ScaleOf scale_of,
                  Round round) {
  std::vector<float> y(w.x.size());
  const auto count = static_cast<int64_t>(w.x.size());
  for (int64_t begin = 0; begin < count; begin += block) {
    const auto x = std::span(w.x).subspan(begin, block);
    const float scale = scale_of(Greatest(x));
    for (int64_t i = 0; i < block; ++i) {
      y[begin + i] = round(x[i] / scale) * scale;
    }
  }
  return RelativeError(w.x, y);
}

constexpr int64_t kMxBlock = 32;
constexpr const char* kMxQuantizer =
    "2^(floor(log2 max) - emax), as the specification has it";

// MX: greatest power of two of the block over that of the element type.
template <typename Round>
void PrintMx(const Weights& w, const char* name, int bits, int element_exponent,
             Round round) {
  const auto scale_of = [element_exponent](float greatest) {
    return std::ldexp(1.0f, std::ilogb(greatest) - element_exponent);
  };
  PrintRow(name, bits + 8.0 / kMxBlock, kMxQuantizer,
           BlockError(w, kMxBlock, scale_of, round));
}

void PrintMxFloat(const Weights& w, const char* name, int bits,
                  const Minifloat& element) {
  PrintMx(w, name, bits, std::ilogb(element.greatest),
          [&element](float x) { return element.Round(x); });
}

// INT8 elements of MX are multiples of 1/64 below 2.
float RoundMxInt8(float x) {
  return std::clamp(std::nearbyint(x * 64), -127.0f, 127.0f) / 64;
}

void PrintFp8(const Weights& w, const char* name, const Minifloat& format) {
  const auto count = static_cast<int64_t>(w.x.size());
  const auto scale_of = [&format](float greatest) {
    return greatest / format.greatest;
  };
  PrintRow(name, 8, "one FP32 scale: max / greatest number",
           BlockError(w, count, scale_of,
                      [&format](float x) { return format.Round(x); }));
}

void PrintTable(const Weights& w) {
  std::printf("| Format | Bits per weight | Scale | Error, %% |\n");
  std::printf("|---|---:|---|---:|\n");
  for (const int64_t group : {32, 64, 128}) {
    PrintGroups(w, QuantFormat::kInt4Sym, group, "max / 7");
  }
  for (const int64_t group : {32, 64, 128}) {
    PrintGroups(w, QuantFormat::kInt4, group, "range / 15, minimum");
  }
  PrintGroups(w, QuantFormat::kAwq, 128, "range / 15, integer zero point");
  PrintBlocks(w, QuantFormat::kQ4_0, "ggml's: signed max / -8");
  PrintBlocks(w, QuantFormat::kQ4_1, "ggml's: range / 15, minimum");
  PrintBlocks(w, QuantFormat::kQ4_K,
              "range / 15, both rounded up to 6 bits; ggml's own searches");
  PrintGroups(w, QuantFormat::kMxfp4, 0, kMxQuantizer);
  PrintGroups(w, QuantFormat::kNvfp4, 0,
              "max / 6 in E4M3, tensor's max / (448 * 6)");
  PrintMxFloat(w, "mxfp6 e2m3", 6, test::kE2m3);
  PrintMxFloat(w, "mxfp6 e3m2", 6, test::kE3m2);
  PrintMxFloat(w, "mxfp8 e4m3", 8, test::kE4m3);
  PrintMxFloat(w, "mxfp8 e5m2", 8, test::kE5m2);
  PrintMx(w, "mxint8", 8, 0, RoundMxInt8);
  PrintRow("int8 per channel", 8 + 16.0 / static_cast<double>(w.k), "max / 127",
           BlockError(
               w, w.k, [](float greatest) { return greatest / 127; },
               [](float x) { return std::nearbyint(x); }));
  PrintFp8(w, "e4m3 per tensor", test::kE4m3);
  PrintFp8(w, "e5m2 per tensor", test::kE5m2);
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app{"Relative error of weight formats on normal weights"};
  app.add_option("--n", options.n, "Rows of the matrix")
      ->check(CLI::Range(8, 1 << 16))
      ->capture_default_str();
  app.add_option("--k", options.k, "Columns of the matrix")
      ->check(CLI::Range(256, 1 << 16))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Of the weights")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (options.n % 8 != 0 || options.k % 256 != 0) {
    std::fprintf(stderr,
                 "--n must be a multiple of 8, --k one of 256; got %lld, "
                 "%lld\n",
                 static_cast<long long>(options.n),
                 static_cast<long long>(options.k));
    return EXIT_FAILURE;
  }
  test::Random random(options.seed);
  const float deviation = 1 / std::sqrt(static_cast<float>(options.k));
  const Weights weights{options.n, options.k,
                        random.Normals(options.n * options.k, deviation)};
  PrintTable(weights);
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  return nibble::bench::RunMain("bench_weight_error", nibble::bench::Main, argc,
                                argv);
}
