// What 8-bit activations and weights cost in accuracy: the relative error of a
// whole product x W^T against the same in FP32 numbers, on data with outliers,
// for every granularity of scales and every recipe for them, as a Markdown
// table. The roundings are the reference's (activation_codes.h).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "bench/rounding.h"
#include "bench/run_main.h"
#include "kernels/activation_codes.h"
#include "kernels/reference/minifloat.h"
#include "kernels/reference/ops.h"
#include "kernels/reference/quantize.h"
#include "kernels/scaling.h"
#include "tests/support/random.h"

namespace nibble::bench {
namespace {

namespace reference = kernels::reference;
using kernels::Fp8;
using kernels::Int8Range;
using kernels::TensorScale;

struct Options {
  int64_t m = 128;
  int64_t n = 256;
  int64_t k = 4096;
  int64_t channels = 4;
  float factor = 100;
  std::vector<double> token_shares = {1, 1.0 / 256};
  int64_t batches = 16;
  uint64_t seed = 1;
};

// Normal values; some channels are `factor` times as great, in all tokens or in
// a share of them.
Matrix MakeActivations(const Options& options, double token_share,
                       uint64_t seed) {
  test::Random random(seed);
  Matrix x{options.m, options.k, random.Normals(options.m * options.k)};
  for (int64_t row = 0; row < x.rows; ++row) {
    for (int64_t i = 0; i < options.channels; ++i) {
      if (random.Uniform() >= token_share) continue;
      const int64_t channel = (2 * i + 1) * x.cols / (2 * options.channels);
      x.data[row * x.cols + channel] *= options.factor;
    }
  }
  return x;
}

Matrix MakeWeights(const Options& options) {
  test::Random random(options.seed + 1000);
  const float deviation = 1 / std::sqrt(static_cast<float>(options.k));
  return {options.n, options.k,
          random.Normals(options.n * options.k, deviation)};
}

// [x.rows, w.rows], FP64 sums.
std::vector<double> Multiply(const Matrix& x, const Matrix& w) {
  std::vector<double> y;
  y.reserve(x.rows * w.rows);
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t j = 0; j < w.rows; ++j) {
      y.push_back(reference::Dot(x.Row(i).data(), w.Row(j).data(), x.cols));
    }
  }
  return y;
}

double RelativeError(std::span<const double> y, std::span<const double> exact) {
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    error += (y[i] - exact[i]) * (y[i] - exact[i]);
    norm += exact[i] * exact[i];
  }
  return std::sqrt(error / norm);
}

// MXFP8: blocks of 32 by a power of two.
Rounded RoundMx(const Matrix& x, Fp8 format) {
  return RoundFp8(x, format, {1, kernels::kMxBlock}, [format](float greatest) {
    uint8_t code = 0;
    return reference::E8m0ToFloat(
        reference::QuantizeMxFp8(std::span(&greatest, 1), format, &code));
  });
}

// The table's rows. Owned by main.
class Table final {
 public:
  Table(const Matrix& x, const Matrix& w)
      : x_(x), w_(w), exact_(Multiply(x, w)) {
    std::printf(
        "| Format | Scales of x | Scales of W | Error, %% | Clipped, %% | "
        "Flushed to zero, %% |\n|---|---|---|---:|---:|---:|\n");
  }

  void Print(const char* format, const char* x_scales, const char* w_scales,
             const Rounded& x, const Rounded& w) const {
    const double share = 100.0 / static_cast<double>(x.losses.values);
    std::printf("| %s | %s | %s | %.2f | %.4f | %.4f |\n", format, x_scales,
                w_scales,
                100 * RelativeError(Multiply(x.values, w.values), exact_),
                share * static_cast<double>(x.losses.clipped),
                share * static_cast<double>(x.losses.flushed));
    std::fflush(stdout);
  }

  void PrintGranularities(Fp8 format) const;
  void PrintClipped(Fp8 format, float by) const;
  void PrintRecipes(Fp8 format, const Options& options,
                    double token_share) const;
  void PrintInt8() const;

 private:
  static const char* Name(Fp8 format) {
    return format == Fp8::kE4m3 ? "e4m3" : "e5m2";
  }
  Tile Whole() const { return {x_.rows, x_.cols}; }
  Tile Token() const { return {1, x_.cols}; }
  Rounded WeightsByChannel(Fp8 format) const {
    return RoundFp8(w_, format, Token(), CurrentScale(format));
  }

  const Matrix& x_;
  const Matrix& w_;
  std::vector<double> exact_;
};

void Table::PrintGranularities(Fp8 format) const {
  const ScaleOf current = CurrentScale(format);
  constexpr int64_t kBlock = kernels::kScaleBlock;
  Print(Name(format), "tensor", "tensor",
        RoundFp8(x_, format, Whole(), current),
        RoundFp8(w_, format, {w_.rows, w_.cols}, current));
  Print(Name(format), "token", "channel",
        RoundFp8(x_, format, Token(), current), WeightsByChannel(format));
  Print(Name(format), "1x128", "128x128",
        RoundFp8(x_, format, {1, kBlock}, current),
        RoundFp8(w_, format, {kBlock, kBlock}, current));
  Print(Name(format), "1x32, E8M0", "1x32, E8M0", RoundMx(x_, format),
        RoundMx(w_, format));
}

void Table::PrintClipped(Fp8 format, float by) const {
  const ScaleOf small = [format, by](float greatest) {
    return TensorScale::Current(format).ScaleFor(greatest / by);
  };
  Print(Name(format), "tensor, 4 times too small", "channel",
        RoundFp8(x_, format, Whole(), small), WeightsByChannel(format));
  Print(Name(format), "token, 4 times too small", "channel",
        RoundFp8(x_, format, Token(), small), WeightsByChannel(format));
}

void Table::PrintRecipes(Fp8 format, const Options& options,
                         double token_share) const {
  TensorScale delayed =
      TensorScale::Delayed(format, static_cast<int>(options.batches));
  kernels::ActivationMaxima maxima;
  for (int64_t batch = 0; batch < options.batches; ++batch) {
    const Matrix other =
        MakeActivations(options, token_share, options.seed + 2 + batch);
    const float greatest = GreatestOf(other.data);
    delayed.ScaleFor(greatest);
    if (batch == 0) maxima.Observe("x", greatest);
  }
  TensorScale fixed = TensorScale::Static(format, maxima.Find("x").value());
  const auto by = [](TensorScale& scale) {
    return [&scale](float greatest) { return scale.ScaleFor(greatest); };
  };
  Print(Name(format), "tensor, delayed", "channel",
        RoundFp8(x_, format, Whole(), by(delayed)), WeightsByChannel(format));
  Print(Name(format), "tensor, static, from other data", "channel",
        RoundFp8(x_, format, Whole(), by(fixed)), WeightsByChannel(format));
}

void Table::PrintInt8() const {
  const Rounded w = RoundInt8(w_, Int8Range::kSymmetric, w_.cols);
  Print("int8", "token", "channel",
        RoundInt8(x_, Int8Range::kSymmetric, x_.cols), w);
  Print("int8", "token, asymmetric", "channel",
        RoundInt8(x_, Int8Range::kAsymmetric, x_.cols), w);
  Print("int8", "1x32", "channel", RoundInt8(x_, Int8Range::kSymmetric, 32), w);
}

void PrintTable(const Options& options, double token_share, const Matrix& w) {
  std::printf("%lld channels %g times the rest in %g of the tokens\n\n",
              static_cast<long long>(options.channels),
              static_cast<double>(options.factor), token_share);
  const Matrix x = MakeActivations(options, token_share, options.seed);
  const Table table(x, w);
  for (const Fp8 format : {Fp8::kE4m3, Fp8::kE5m2}) {
    table.PrintGranularities(format);
  }
  table.PrintClipped(Fp8::kE4m3, 4);
  table.PrintRecipes(Fp8::kE4m3, options, token_share);
  table.PrintInt8();
  std::printf("\n");
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app{"Relative error of products of 8-bit activations and weights"};
  app.add_option("--m", options.m, "Tokens")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--n", options.n, "Rows of the weights")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--k", options.k, "Channels")
      ->check(CLI::Range(64, 1 << 16))
      ->capture_default_str();
  app.add_option("--outliers", options.channels, "Great channels")
      ->check(CLI::Range(0, 32))
      ->capture_default_str();
  app.add_option("--factor", options.factor, "How many times as great they are")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--token-shares", options.token_shares,
                 "In what share of the tokens they are; a table each")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--history", options.batches,
                 "Batches that the delayed recipe has seen")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Of all data")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const Matrix w = MakeWeights(options);
  for (const double share : options.token_shares) {
    PrintTable(options, share, w);
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  return nibble::bench::RunMain("bench_activation_error", nibble::bench::Main,
                                argc, argv);
}
