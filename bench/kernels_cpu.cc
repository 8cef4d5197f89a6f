// Speed of the CPU backend's linear layers and attention, each against what
// the machine could do: the bytes of weights per second against a measured
// read of as many from memory, the operations per second against a measured
// loop of 8-bit dot products, or for float weights of multiply-adds. Compare
// numbers of one run only.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "bench/cpu_peaks.h"
#include "bench/run_main.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/cpu_count.h"
#include "kernels/cpu/target.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/host_memory.h"
#include "kernels/quant_format.h"

namespace nibble::bench {
namespace {

using kernels::Backend;
using kernels::LinearOp;
using kernels::QuantFormat;
using kernels::TensorView;
using kernels::WeightView;
using kernels::cpu::CpuTarget;

struct Options {
  int threads = 0;
  double seconds = 0.15;  // of measuring, for each line
  int64_t n = 4096;
  int64_t k = 4096;
  std::vector<std::string> formats;
  std::vector<int64_t> rows = {1, 2, 4, 8, 16, 32, 128, 512};
  std::string target;
  bool attention = true;
};

// Weights of one format, more of them than the caches hold.
struct Matrices {
  std::vector<std::byte> file;  // all of them, and their scales
  std::string name;
  std::vector<std::unique_ptr<LinearOp>> ops;
};

// A format and, where it leaves the choice, the weights that share a scale.
struct Format {
  QuantFormat format;
  int64_t group = 0;
};

std::vector<Format> AllFormats() {
  std::vector<Format> formats;
  for (const kernels::FormatInfo& info : kernels::kFormatTable) {
    formats.push_back({info.format});
  }
  for (const QuantFormat format :
       {QuantFormat::kInt4, QuantFormat::kInt4Sym, QuantFormat::kAwq}) {
    for (const int64_t group : {32, 64, 128}) {
      formats.push_back({format, group});
    }
  }
  return formats;
}

// Any bytes are weights; scales (FP16 or FP32 bits) of small exponents keep
// the sums finite. Codes do not matter for speed.
std::vector<std::byte> SomeBytes(int64_t count) {
  std::vector<std::byte> bytes(count);
  uint32_t state = 1;
  for (std::byte& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<std::byte>(state >> 24) & std::byte{0x2f};
  }
  return bytes;
}

WeightView ViewOf(const Format& format, int64_t n, int64_t k) {
  return {.name = "bench",
          .format = format.format,
          .n = n,
          .k = k,
          .group_elements = format.group};
}

Matrices MakeMatrices(Backend& backend, const Format& format, int64_t n,
                      int64_t k) {
  constexpr int64_t kMoreThanCaches = int64_t{160} << 20;
  WeightView view = ViewOf(format, n, k);
  const int64_t scale_bytes =
      kernels::IsBlockFormat(format.format) ? 0 : 2 * n * view.Groups();
  Matrices matrices;
  matrices.file = SomeBytes(view.Bytes() + 2 * scale_bytes);
  matrices.name = kernels::DisplayName(view);
  view.data = matrices.file.data();
  view.scales = view.data + view.Bytes();
  view.zeros_or_mins = view.scales + scale_bytes;
  const int64_t count =
      std::clamp<int64_t>(kMoreThanCaches / view.Bytes(), 1, 512);
  for (int64_t i = 0; i < count; ++i) {
    // More rows than are asked for; memory that is not touched costs nothing.
    auto op =
        backend.MakeLinear({&view, 1}, {.name = "bench", .max_rows = 1 << 14});
    if (!op.ok()) {
      std::fprintf(stderr, "%s\n", op.status().ToString().c_str());
      std::exit(1);
    }
    matrices.ops.push_back(*std::move(op));
  }
  return matrices;
}

void BenchFormat(Backend& backend, const Matrices& matrices,
                 const Options& options, double peak) {
  const int64_t most =
      *std::max_element(options.rows.begin(), options.rows.end());
  const auto x = backend.MakeActivations(most, options.k).value();
  std::vector<float> values(most * options.k), weight(options.k, 1.0f);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(static_cast<int>(i * 7919 % 255) - 127);
  }
  backend.RmsNorm(TensorView::F32(values.data(), most, options.k),
                  weight.data(), 1e-5f, x.get());
  std::vector<float> y(most * options.n);
  const int64_t packed_bytes = matrices.ops[0]->packed_bytes();
  const auto bytes = static_cast<double>(packed_bytes);
  const double read_peak = MeasureRead(options.threads, packed_bytes);
  std::printf("%s of %.2f MB: read %.1f GB/s; %s\n", matrices.name.c_str(),
              bytes * 1e-6, read_peak * 1e-9,
              matrices.ops[0]->plan().ToString().c_str());
  for (const int64_t rows : options.rows) {
    size_t next = 0;
    const double seconds = BestSeconds(options.seconds, [&] {
      matrices.ops[next++ % matrices.ops.size()]->Run(
          {.x = x.get(), .y = TensorView::F32(y.data(), rows, options.n)});
    });
    const double operations = 2.0 * static_cast<double>(rows) *
                              static_cast<double>(options.n) *
                              static_cast<double>(options.k);
    std::printf(
        "%-10s %6lld x %-6lld M %4lld %10.1f us %7.1f GB/s (%3.0f%%) "
        "%8.1f GOP/s (%3.0f%%)\n",
        matrices.name.c_str(), static_cast<long long>(options.n),
        static_cast<long long>(options.k), static_cast<long long>(rows),
        seconds * 1e6, bytes / seconds * 1e-9,
        100 * bytes / seconds / read_peak, operations / seconds * 1e-9,
        100 * operations / seconds / peak);
    std::fflush(stdout);
  }
}

// One layer of SmolLM2-135M's shape: 9 query heads, 3 KV heads of 64.
void BenchAttention(Backend& backend, int32_t rows, int32_t length,
                    const Options& options) {
  constexpr int32_t kHeads = 9, kKvHeads = 3, kHeadDim = 64, kPage = 16;
  const int32_t pages = (length + kPage - 1) / kPage;
  std::vector<uint16_t> k(int64_t{pages} * kPage * kKvHeads * kHeadDim, 0x3400);
  std::vector<uint16_t> v = k;
  std::vector<int32_t> positions, page_ids;
  for (int32_t i = length - rows; i < length; ++i) positions.push_back(i);
  for (int32_t i = 0; i < pages; ++i) page_ids.push_back(i);
  const std::vector<int64_t> slots(rows, 0);
  const std::vector<int32_t> row_begin = {0, rows}, page_begin = {0, pages};
  backend.BeginStep({.rows = rows,
                     .positions = positions,
                     .slots = slots,
                     .row_begin = row_begin,
                     .page_begin = page_begin,
                     .page_ids = page_ids});
  std::vector<float> q(int64_t{rows} * kHeads * kHeadDim, 0.1f);
  const auto out =
      backend.MakeActivations(rows, int64_t{kHeads} * kHeadDim).value();
  const double seconds = BestSeconds(options.seconds, [&] {
    backend.Attention(TensorView::F32(q.data(), rows, kHeads * kHeadDim),
                      {.k = k.data(),
                       .v = v.data(),
                       .dtype = kernels::DType::kF16,
                       .page_size = kPage,
                       .kv_heads = kKvHeads,
                       .head_dim = kHeadDim},
                      {.heads = kHeads,
                       .kv_heads = kKvHeads,
                       .head_dim = kHeadDim,
                       .scale = 0.125f},
                      out.get());
  });
  const double keys =
      static_cast<double>(rows) * (length - (rows - 1) / 2.0) * kHeads;
  std::printf("attention %4d rows to position %5d %10.1f us %7.1f GFLOP/s\n",
              rows, length, seconds * 1e6,
              keys * 4 * kHeadDim / seconds * 1e-9);
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Speed of the CPU backend's kernels");
  app.add_option("--threads", options.threads, "0: all the process may use");
  app.add_option("--seconds", options.seconds, "measuring time of a line");
  app.add_option("--n", options.n, "rows of the weight matrix");
  app.add_option("--k", options.k, "columns of the weight matrix");
  app.add_option("--format", options.formats, "formats (default: all)");
  app.add_option("--rows", options.rows, "rows of activations");
  app.add_option("--target", options.target,
                 "portable, AVX2, AVX-VNNI or \"AVX-512 VNNI\"");
  app.add_flag("!--no-attention", options.attention, "leave attention out");
  CLI11_PARSE(app, argc, argv);
  CpuTarget target = kernels::cpu::AvailableTargets().back();
  if (!options.target.empty()) {
    const auto wanted = kernels::cpu::TargetByName(options.target);
    if (!wanted) {
      std::fprintf(stderr, "this machine cannot run '%s'\n",
                   options.target.c_str());
      return 1;
    }
    target = *wanted;
    kernels::cpu::LimitTargets(target);
  }
  const int threads =
      options.threads > 0 ? options.threads : kernels::cpu::UsableCpus();
  const auto backend =
      kernels::MakeCpuBackend({.threads = threads, .max_target = target});
  if (!backend.ok()) {
    std::fprintf(stderr, "%s\n", backend.status().ToString().c_str());
    return 1;
  }
  options.threads = threads;
  const double int8_peak = MeasureInt8(threads, target);
  const double float_peak = MeasureFma(threads);
  std::printf(
      "%s: 8-bit dot products %.0f GOP/s, FP32 multiply-adds %.0f GFLOP/s\n",
      (*backend)->description().c_str(), int8_peak * 1e-9, float_peak * 1e-9);
  for (const Format& format : AllFormats()) {
    const WeightView view = ViewOf(format, options.n, options.k);
    const std::vector<std::string>& names = options.formats;
    if (!names.empty() &&
        std::find(names.begin(), names.end(), kernels::DisplayName(view)) ==
            names.end()) {
      continue;
    }
    const bool floats =
        kernels::Info(format.format).code == kernels::CodeType::kFloat;
    BenchFormat(**backend,
                MakeMatrices(**backend, format, options.n, options.k), options,
                floats ? float_peak : int8_peak);
  }
  if (!options.attention) return 0;
  for (const int32_t length : {128, 512, 2048}) {
    BenchAttention(**backend, 1, length, options);
    BenchAttention(**backend, std::min(length, 512), length, options);
  }
  return 0;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  return nibble::bench::RunMain("bench_kernels_cpu", nibble::bench::Main, argc,
                                argv);
}
