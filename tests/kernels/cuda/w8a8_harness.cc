#include "tests/kernels/cuda/w8a8_harness.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <span>
#include <thread>
#include <utility>

#include "base/checked_math.h"
#include "kernels/activation_codes.h"
#include "kernels/cuda/linear/w8a8_pack.h"
#include "kernels/reference/minifloat.h"
#include "tests/kernels/cuda/w4_reference.h"
#include "tests/support/random.h"

namespace nibble::test {

using kernels::DType;
using kernels::LaunchSpec;
using kernels::cuda::DeviceBuffer;
using kernels::cuda::PinnedBuffer;
using kernels::cuda::W8Args;
using kernels::cuda::W8Config;
using kernels::cuda::W8Kind;
using kernels::cuda::W8Problem;
using kernels::cuda::W8Scaling;
using kernels::cuda::W8Tile;
using kernels::reference::CodedDot;
using kernels::reference::CodedMatrix;
using kernels::reference::CodeType;
using kernels::reference::ScaleGrid;

namespace {

constexpr int kPoison = 0xff;  // a NaN in every type
constexpr int64_t kGuardRows = 2;
constexpr int64_t kExtraPitch = 32;  // bytes of x behind k and its padding
constexpr uint8_t kPadCode = 0x11;
constexpr int64_t kBlock = kernels::kScaleBlock;

uint8_t AnyCode(bool int8, Random& random) {
  for (;;) {
    const auto code = static_cast<uint8_t>(random.Bits());
    if (int8 || (code & 0x7f) != 0x7f) return code;
  }
}

uint8_t SparseCode(bool int8, Random& random) {
  const auto number = static_cast<int>(random.Int(-8, 8));
  if (number < -2 || number > 2) return 0;
  return int8 ? static_cast<uint8_t>(number)
              : kernels::reference::FloatToE4m3(static_cast<float>(number));
}

std::vector<float> Scales(int64_t count, const W8Setup& setup, Random& random) {
  std::vector<float> scales(static_cast<size_t>(count));
  const float low = std::log(setup.least_scale);
  const float high = std::log(setup.greatest_scale);
  for (float& scale : scales) {
    scale =
        low == high ? setup.least_scale : std::exp(random.Uniform(low, high));
  }
  return scales;
}

}  // namespace

W8Operands::W8Operands(const W8Setup& setup) : setup_(setup) {
  MakeCodes();
  MakeScales();
  Upload();
}

bool W8Operands::IsInt8() const {
  return kernels::cuda::IsInt8(setup_.problem.kind);
}

W8Scaling W8Operands::XScaling() const {
  return setup_.problem.kind == W8Kind::kE4m3Block ? W8Scaling::kBlock
                                                   : setup_.scaling;
}

W8Scaling W8Operands::WScaling() const {
  return setup_.problem.kind == W8Kind::kInt8Group ? W8Scaling::kGroup
                                                   : XScaling();
}

void W8Operands::MakeCodes() {
  const auto& [kind, m, n, k] = setup_.problem;
  Random random(setup_.seed);
  const auto make = [&](std::vector<uint8_t>& codes, int64_t count) {
    codes.resize(static_cast<size_t>(count));
    for (uint8_t& code : codes) {
      code = setup_.codes == W8Codes::kAny ? AnyCode(IsInt8(), random)
                                           : SparseCode(IsInt8(), random);
      if (setup_.fill >= 0) code = static_cast<uint8_t>(setup_.fill);
    }
  };
  make(x_, m * k);
  make(w_, n * k);
  if (setup_.zeros) {
    zeros_.resize(static_cast<size_t>(m));
    for (int32_t& zero : zeros_) {
      zero =
          setup_.fill >= 0 ? 127 : static_cast<int32_t>(random.Int(-128, 127));
    }
  }
}

void W8Operands::MakeScales() {
  const auto& [kind, m, n, k] = setup_.problem;
  Random random(setup_.seed + 1);
  scales_pitch_ = kernels::BlockScalePitch(m);
  const int64_t k_blocks = DivideUp(k, kBlock);
  const auto make = [&](W8Scaling scaling, int64_t rows, int64_t blocks) {
    switch (scaling) {
      case W8Scaling::kTensor:
        return Scales(1, setup_, random);
      case W8Scaling::kRow:
        return Scales(rows, setup_, random);
      case W8Scaling::kBlock:
      case W8Scaling::kGroup:
        break;
    }
    return Scales(blocks * k_blocks, setup_, random);
  };
  x_scales_ = make(XScaling(), m, scales_pitch_);
  w_scales_ = make(WScaling(), n,
                   WScaling() == W8Scaling::kGroup ? n : DivideUp(n, kBlock));
}

void W8Operands::Upload() {
  const auto& [kind, m, n, k] = setup_.problem;
  x_pitch_ = kernels::cuda::W8Pitch(k) + kExtraPitch;
  std::vector<uint8_t> x(static_cast<size_t>(m * x_pitch_), kPadCode);
  for (int64_t row = 0; row < m; ++row) {
    std::memcpy(x.data() + row * x_pitch_, x_.data() + row * k, k);
  }
  x_codes_device_ = ToDevice<uint8_t>(x);
  const auto packed = kernels::cuda::PackW8(kind, w_, n, k);
  w_codes_device_ = ToDevice<std::byte>(packed.codes);
  x_scales_device_ = ToDevice<float>(x_scales_);
  if (setup_.zeros) zeros_device_ = ToDevice<int32_t>(zeros_);
  if (WScaling() == W8Scaling::kGroup) {
    const auto groups = kernels::cuda::PackW8Groups(w_, w_scales_, n, k);
    w_scales_device_ = ToDevice<float>(groups.scales);
    if (setup_.zeros) {
      scaled_sums_device_ = ToDevice<float>(groups.scaled_sums);
    }
    return;
  }
  w_scales_device_ = ToDevice<float>(w_scales_);
  if (setup_.zeros) sums_device_ = ToDevice<int32_t>(packed.sums);
}

W8Args W8Operands::Args(int64_t m) const {
  const auto& [kind, all_m, n, k] = setup_.problem;
  NIBBLE_CHECK_LE(m, all_m);
  return {.kind = kind,
          .w = {.codes = w_codes_device_.data(),
                .n = n,
                .k = k,
                .pitch = kernels::cuda::W8Pitch(k),
                .scales = w_scales_device_.as<float>(),
                .scaling = WScaling(),
                .scales_pitch = kernels::cuda::W8PackedRows(n),
                .sums = sums_device_.as<int32_t>(),
                .scaled_sums = scaled_sums_device_.as<float>()},
          .x = {.codes = x_codes_device_.data(),
                .pitch = x_pitch_,
                .scales = x_scales_device_.as<float>(),
                .scaling = XScaling(),
                .scales_pitch = scales_pitch_,
                .zeros = zeros_device_.as<int32_t>()},
          .m = m,
          .y_dtype = DType::kF32};
}

CodedMatrix W8Operands::X() const {
  CodedMatrix x{.type = IsInt8() ? CodeType::kInt8 : CodeType::kE4m3,
                .codes = x_,
                .k = setup_.problem.k,
                .grid = {.scales = x_scales_},
                .zeros = zeros_};
  if (XScaling() == W8Scaling::kRow) {
    x.grid = {.scales = x_scales_, .rows = 1, .row_step = 1};
  } else if (XScaling() == W8Scaling::kBlock) {
    x.grid = {.scales = x_scales_,
              .rows = 1,
              .ks = kBlock,
              .row_step = 1,
              .k_step = scales_pitch_};
  }
  return x;
}

CodedMatrix W8Operands::W() const {
  CodedMatrix w = X();
  w.codes = w_;
  w.zeros = {};
  w.grid.scales = w_scales_;
  if (WScaling() == W8Scaling::kBlock || WScaling() == W8Scaling::kGroup) {
    w.grid = {.scales = w_scales_,
              .rows = WScaling() == W8Scaling::kBlock ? kBlock : 1,
              .ks = kBlock,
              .row_step = DivideUp(w.k, kBlock),
              .k_step = 1};
  }
  return w;
}

void W8Operands::SetX(int64_t row, int64_t k, uint8_t code) {
  x_[row * setup_.problem.k + k] = code;
  Upload();
}

void W8Operands::SetW(int64_t row, int64_t k, uint8_t code) {
  w_[row * setup_.problem.k + k] = code;
  Upload();
}

W8Reference W8Reference::Make(const W8Operands& operands) {
  W8Reference reference;
  reference.rows = operands.problem().m;
  reference.columns = operands.problem().n;
  reference.dots.resize(
      static_cast<size_t>(reference.rows * reference.columns));
  const CodedMatrix x = operands.X(), w = operands.W();
  std::atomic<int64_t> next = 0;
  std::vector<std::thread> threads;
  const unsigned wanted = std::max(1u, std::thread::hardware_concurrency());
  for (unsigned i = 0; i < wanted; ++i) {
    threads.emplace_back([&] {
      for (int64_t row = next++; row < reference.rows; row = next++) {
        for (int64_t column = 0; column < reference.columns; ++column) {
          reference.dots[row * reference.columns + column] =
              kernels::reference::DotOfCodes(x, row, w, column);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return reference;
}

double W8SumError(W8Kind kind, const CodedDot& dot) {
  // Both scales' product and the sum are rounded to FP32.
  const double rounding = 0x1p-22 * std::fabs(dot.value) + 0x1p-140;
  switch (kind) {
    case W8Kind::kInt8:
      return rounding;
    case W8Kind::kInt8Group:
      // FP32 additions, one for 128 products: fewer than 64 of them.
      return rounding + 0x1p-18 * dot.magnitude;
    case W8Kind::kE4m3:
    case W8Kind::kE4m3Fast:
    case W8Kind::kE4m3Block:
      break;
  }
  return rounding + 0x1p-9 * dot.magnitude;
}

W8Runner::W8Runner() : device_(kernels::cuda::ListDevices().value().at(0)) {}

W8Runner& W8Runner::Get() {
  static auto* const runner = new W8Runner();
  return *runner;
}

std::vector<LaunchSpec> W8Runner::Specs(const W8Problem& problem) const {
  std::vector<LaunchSpec> specs =
      Specs(problem, kernels::cuda::W8Tiles(problem.kind));
  for (LaunchSpec& spec : Specs(problem, kernels::cuda::kW8MmaTiles)) {
    specs.push_back(std::move(spec));
  }
  return specs;
}

std::vector<LaunchSpec> W8Runner::Specs(const W8Problem& problem,
                                        std::span<const W8Tile> tiles) const {
  std::vector<LaunchSpec> specs;
  for (const W8Tile& tile : tiles) {
    for (const int cluster : {1, 2, 4}) {
      const LaunchSpec spec =
          kernels::cuda::W8Spec(problem.kind, W8Config{tile, cluster});
      if (kernels::cuda::W8Feasible(problem, spec, device_)) {
        specs.push_back(spec);
      }
    }
  }
  return specs;
}

W8Output W8Runner::Run(const W8Job& job, const LaunchSpec& spec) {
  W8Args args = job.args;
  const int64_t m = args.m, n = args.w.n;
  const int64_t size = kernels::ElementBytes(args.y_dtype);
  args.ldy = job.aligned ? RoundUp(n, int64_t{8}) + 8 : n + 1 + n % 2;
  const int64_t pitch = args.ldy * size;
  const int64_t offset = pitch + (job.aligned ? 0 : size);
  const int64_t bytes = (m + kGuardRows) * pitch;
  if (y_.bytes() < bytes) {
    y_ = DeviceBuffer::Make(bytes).value();
    host_ = PinnedBuffer::Make(bytes).value();
  }
  NIBBLE_CUDA_CHECK(cudaMemsetAsync(y_.data(), kPoison, bytes, stream_.get()));
  args.y = y_.data() + offset;
  if (job.added_to != nullptr) {
    NIBBLE_CUDA_CHECK(cudaMemcpy2DAsync(args.y, pitch, job.added_to, n * size,
                                        n * size, m, cudaMemcpyHostToDevice,
                                        stream_.get()));
    args.residual = args.y;
    args.ld_residual = args.ldy;
  }
  kernels::cuda::LaunchW8(args, spec, device_, stream_.get(),
                          {.overlap = job.overlap});
  NIBBLE_CUDA_CHECK(cudaMemcpyAsync(host_.data(), y_.data(), bytes,
                                    cudaMemcpyDeviceToHost, stream_.get()));
  stream_.Synchronize();

  W8Output output;
  output.y.resize(static_cast<size_t>(m * n * size));
  std::byte* const all = host_.data();
  for (int64_t row = 0; row < m; ++row) {
    std::byte* const from = all + offset + row * pitch;
    std::memcpy(output.y.data() + row * n * size, from, n * size);
    std::memset(from, kPoison, n * size);
  }
  const auto* const wrong = std::find_if(all, all + bytes, [](std::byte byte) {
    return byte != static_cast<std::byte>(kPoison);
  });
  if (wrong != all + bytes) {
    const int64_t at = wrong - all - offset;
    output.problem = "written outside of y, " + std::to_string(at) +
                     " bytes from its beginning";
  }
  return output;
}

std::string WhyNoW8(W8Kind kind) {
  return std::string(
      kernels::cuda::CheckW8Device(kind, W8Runner::Get().device()).message());
}

void W8KindTest::SetUp() {
  GpuTest::SetUp();
  if (IsSkipped()) return;
  if (const std::string why = WhyNoW8(GetParam()); !why.empty()) {
    GTEST_SKIP() << why;
  }
}

}  // namespace nibble::test
