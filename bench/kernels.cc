// Speed of the GPU's linear layers: the W4A16, W4A8 and W8A8 kernels, alone and
// behind norm and quantization, against the bytes they read, the device's
// measured bandwidth and cuBLASLt, all in one run, each result checked against
// FP64 sums before it is timed. Compare numbers of one run only.
// docs/benchmarks.md says how to run it.
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "bench/gpu_ladder.h"
#include "bench/gpu_linear.h"
#include "bench/gpu_monitor.h"
#include "bench/gpu_quantize.h"
#include "bench/gpu_w4a8.h"
#include "bench/gpu_w8a8.h"
#include "bench/run_main.h"
#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/linear/w4_layout.h"
#include "kernels/cuda/runtime.h"

namespace nibble::bench {
namespace {

using kernels::DType;
using kernels::cuda::CublasLt;
using kernels::cuda::DeviceInfo;

constexpr int kRepeats = 31;
constexpr int kQuickRepeats = 7;

struct Options {
  std::vector<std::string> shapes = {"14336x4096", "4096x14336", "4096x4096",
                                     "6144x4096", "28672x4096"};
  std::vector<std::string> formats = {"int4-g128"};
  std::vector<int64_t> m = {1,   2,   4,   8,    16,   32,  64,
                            128, 256, 512, 1024, 2048, 4096};
  std::vector<std::string> paths;
  std::string x_dtype = "bf16";
  std::string csv;
  std::string commit = "-";
  std::string cublaslt;
  double peak_tflops = 989.5;
  bool quick = false;
  bool ladder = false;
  bool quantize = false;
  bool w4a8 = false;
  bool w8a8 = false;
  bool check_only = false;
  bool every = false;
  bool portable = false;
  bool cold_only = false;
  double sustained_s = 0;
};

void AddOptions(CLI::App& app, Options& options) {
  app.add_option("--shapes", options.shapes,
                 "Weight matrices, NxK (outputs x inputs); N a multiple of 16, "
                 "K of 256")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--formats", options.formats,
                 absl::StrCat("Weight formats, of ", W4FormatNames()))
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--m", options.m, "Numbers of rows of activations")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--paths", options.paths,
                 "Only paths whose names begin with one of these")
      ->delimiter(',');
  app.add_option("--x-dtype", options.x_dtype,
                 "Type of activations and results")
      ->check(CLI::IsMember({"bf16", "fp16"}))
      ->capture_default_str();
  app.add_option("--csv", options.csv,
                 "Append the rows to this file; it gets a header when new");
  app.add_option("--commit", options.commit,
                 "What the CSV's last column says of the build")
      ->capture_default_str();
  app.add_option("--cublaslt", options.cublaslt,
                 "libcublasLt.so.13 or .12, or its folder, where the loader "
                 "does not find it");
  app.add_option("--peak-tflops", options.peak_tflops,
                 "Dense 16-bit rate of the device in TFLOP/s, for the percent "
                 "of peak; the default is that of H100 and H200 SXM")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--quick", options.quick, "Fewer repetitions");
  app.add_flag("--check-only", options.check_only,
               "Check every way to run each shape, time nothing");
  app.add_flag("--every", options.every,
               "Time every way to run each shape that the plan would try, not "
               "only the fastest of each kernel");
  app.add_flag("--portable", options.portable,
               "Also on Hopper time the kernel for other devices (--w8a8)");
  app.add_flag("--cold-only", options.cold_only,
               "Leave out the nodes of graphs");
  app.add_option(
         "--sustained", options.sustained_s,
         "Seconds to run each path back to back as well, those behind a "
         "norm left out; the mean of the last one counts")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--ladder", options.ladder,
               "Instead of the sweep: Q4_0 times a vector, from byte loads to "
               "our kernel, against an FP16 matrix");
  app.add_flag("--quantize", options.quantize,
               "Instead of the sweep: activations to 8 bits, fused with norm "
               "and SiLU-mul, against the copy bandwidth");
  app.add_flag("--w4a8", options.w4a8,
               "Instead of the sweep: 4-bit weights times INT8 activations, "
               "against cuBLASLt on BF16");
  app.add_flag("--w8a8", options.w8a8,
               "Instead of the sweep: INT8 and FP8 weights and activations, "
               "against cuBLASLt");
}

absl::StatusOr<Shape> ParseShape(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, 'x');
  Shape shape;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &shape.n) ||
      !absl::SimpleAtoi(parts[1], &shape.k) || shape.n <= 0 || shape.k <= 0 ||
      shape.n % kernels::cuda::kTileRows != 0 ||
      shape.k % kernels::cuda::kBlockK != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--shapes: '", text, "' is no NxK with N a multiple of ",
        kernels::cuda::kTileRows, " and K of ", kernels::cuda::kBlockK));
  }
  return shape;
}

absl::StatusOr<SweepOptions> ToSweepOptions(const Options& options) {
  SweepOptions sweep;
  sweep.m = options.m;
  sweep.x_dtype = options.x_dtype == "fp16" ? DType::kF16 : DType::kBF16;
  sweep.check_only = options.check_only;
  sweep.every = options.every;
  sweep.portable = options.portable;
  sweep.cold_only = options.cold_only;
  sweep.sustained_s = options.sustained_s;
  sweep.paths = options.paths;
  sweep.peak_tflops = options.peak_tflops;
  for (const std::string& text : options.shapes) {
    NIBBLE_ASSIGN_OR_RETURN(const Shape shape, ParseShape(text));
    sweep.shapes.push_back(shape);
  }
  for (const std::string& name : options.formats) {
    const std::optional<W4Format> format = W4FormatByName(name);
    if (!format.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--formats: '", name, "' is none of ", W4FormatNames()));
    }
    sweep.formats.push_back(*format);
  }
  return sweep;
}

void PrintCondition(const char* when, const GpuMonitor* monitor) {
  if (monitor == nullptr) return;
  const Condition now = monitor->Read();
  std::printf("%s: SM clock %.0f MHz, %.0f W\n", when, now.sm_mhz, now.watts);
}

// The exit code.
absl::StatusOr<int> Run(const Options& options) {
  NIBBLE_ASSIGN_OR_RETURN(const SweepOptions sweep, ToSweepOptions(options));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<DeviceInfo> devices,
                          kernels::cuda::ListDevices());
  if (devices.empty()) {
    std::printf("no CUDA device: nothing to measure\n");
    return 0;
  }
  const DeviceInfo& device = devices[0];
  NIBBLE_CUDA_CHECK(cudaSetDevice(device.index));
  NIBBLE_ASSIGN_OR_RETURN(
      GpuTimer timer, GpuTimer::Make(options.quick ? kQuickRepeats : kRepeats));
  absl::StatusOr<CublasLt> cublas = CublasLt::Open(options.cublaslt);
  if (!cublas.ok()) {
    std::printf("without cuBLASLt: %s\n", cublas.status().ToString().c_str());
  }
  NIBBLE_ASSIGN_OR_RETURN(
      CsvFile csv, CsvFile::Open(options.csv, {.gpu = device.name,
                                               .commit = options.commit}));
  NIBBLE_ASSIGN_OR_RETURN(const Ceilings ceilings, MeasureCeilings(timer));
  std::printf("%s: copies %.0f GB/s, reads %.0f GB/s, empty launch %.2f us\n",
              device.ToString().c_str(), ceilings.copy_gbps, ceilings.read_gbps,
              ceilings.empty_us);
  const absl::StatusOr<GpuMonitor> monitor = GpuMonitor::Open(device.index);
  if (!monitor.ok()) {
    std::printf("without clocks and power: %s\n",
                monitor.status().ToString().c_str());
  }
  const SweepTools tools{.timer = &timer,
                         .cublas = cublas.ok() ? &*cublas : nullptr,
                         .monitor = monitor.ok() ? &*monitor : nullptr,
                         .device = &device,
                         .ceilings = ceilings,
                         .csv = &csv};
  const auto measure = [&] {
    if (options.ladder) return RunLadder(tools);
    if (options.quantize) return SweepQuantize(sweep, tools);
    if (options.w4a8) return SweepW4a8(sweep, tools);
    if (options.w8a8) return SweepW8a8(sweep, tools);
    return SweepLinear(sweep, tools);
  };
  PrintCondition("before", tools.monitor);
  NIBBLE_ASSIGN_OR_RETURN(const int wrong, measure());
  PrintCondition("after", tools.monitor);
  if (wrong > 0) std::printf("%d results are WRONG\n", wrong);
  return wrong > 0 ? 1 : 0;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Speed of the GPU's linear layers with 4-bit and 8-bit weights. Exits "
      "with 0 where there is no GPU, with 1 when a result is wrong.");
  AddOptions(app, options);
  CLI11_PARSE(app, argc, argv);
  const absl::StatusOr<int> code = Run(options);
  if (code.ok()) return *code;
  std::fprintf(stderr, "bench_kernels: %s\n", code.status().ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  return nibble::bench::RunMain("bench_kernels", nibble::bench::Main, argc,
                                argv);
}
