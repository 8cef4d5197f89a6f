#include "tests/kernels/cuda/w4a8_harness.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <span>
#include <thread>

#include "base/checked_math.h"
#include "kernels/reference/half.h"
#include "kernels/reference/minifloat.h"
#include "tests/kernels/cuda/w4_harness.h"
#include "tests/kernels/cuda/w4_reference.h"
#include "tests/support/random.h"

namespace nibble::test {

using kernels::DType;
using kernels::LaunchSpec;
using kernels::cuda::DeviceBuffer;
using kernels::cuda::kW4a8SuperBlock;
using kernels::cuda::W4a8Args;
using kernels::cuda::W4a8Format;
using kernels::cuda::W4a8Kind;
using kernels::cuda::W4a8Problem;
using kernels::cuda::W4Numbers;
using kernels::reference::W4A8Dot;

namespace {

constexpr int kPoison = 0xff;  // a NaN in every type
constexpr int64_t kGuardRows = 2;
constexpr int64_t kExtraPitch = 32;  // bytes of x behind k and its padding
constexpr uint8_t kPadCode = 0x11;
constexpr int kPackThreads = 4;

template <typename T>
std::span<const T> RowOf(const std::vector<T>& all, int64_t row, int64_t size) {
  return std::span(all).subspan(static_cast<size_t>(row * size),
                                static_cast<size_t>(size));
}

}  // namespace

W4Numbers RandomW4Numbers(W4a8Format format, int64_t n, int64_t k,
                          W4a8Numbers kind, uint64_t seed) {
  Random random(seed);
  const bool any = kind == W4a8Numbers::kAny;
  W4Numbers numbers{.n = n,
                    .k = k,
                    .group = format.group,
                    .symmetric = format.kind == W4a8Kind::kScale};
  numbers.codes.resize(static_cast<size_t>(n * k));
  // Sums on the way, with the offset of x in them, stay exact, too.
  const int greatest = !any && format.HasSubScales() ? 7 : 15;
  for (uint8_t& code : numbers.codes) {
    code = static_cast<uint8_t>(random.Int(0, greatest));
  }
  const int64_t groups = numbers.Groups();
  const int64_t supers = DivideUp(k, int64_t{kW4a8SuperBlock});
  numbers.scales.resize(static_cast<size_t>(n * groups));
  numbers.minimums.resize(numbers.scales.size());
  if (format.HasSubScales()) {
    numbers.super_scales.resize(static_cast<size_t>(n * supers));
    numbers.sub_scales.resize(numbers.scales.size());
    for (float& super : numbers.super_scales) {
      super = random.Uniform(-0.01f, 0.01f);
    }
    // Of both signs by turns, so that sums on the way stay small, too.
    for (int64_t i = 0; !any && i < n * supers; ++i) {
      numbers.super_scales[i] = i % supers % 2 == 0 ? 1.0f : -1.0f;
    }
  }
  for (int64_t i = 0; i < n * groups; ++i) {
    float scale = any ? random.Uniform(-0.1f, 0.1f)
                      : static_cast<float>(random.Int(-4, 4));
    if (format.HasSubScales()) {
      const int64_t super =
          i / groups * supers + i % groups * format.group / kW4a8SuperBlock;
      numbers.sub_scales[i] = static_cast<uint8_t>(random.Int(0, 63));
      scale = numbers.super_scales[super] *
              static_cast<float>(numbers.sub_scales[i]);
    }
    numbers.scales[i] = scale;
    numbers.minimums[i] = any ? random.Uniform(-0.5f, 0.5f)
                              : static_cast<float>(random.Int(-60, 60));
    if (numbers.symmetric) numbers.minimums[i] = -8 * scale;
  }
  return numbers;
}

W4a8Operands::W4a8Operands(const W4a8Problem& problem, W4a8Numbers kind,
                           uint64_t seed)
    : problem_(problem) {
  const auto& [format, m, n, k] = problem_;
  numbers_ = RandomW4Numbers(format, n, k, kind, seed);
  packed_ = PackW4a8(numbers_, format, kPackThreads).value();
  Random random(seed + 1);
  const bool any = kind == W4a8Numbers::kAny;
  const int greatest = any ? 127 : 2;
  x_.resize(static_cast<size_t>(m * k));
  x_codes_.resize(x_.size());
  for (size_t i = 0; i < x_.size(); ++i) {
    const auto x = static_cast<int>(random.Int(-greatest, greatest));
    x_codes_[i] = IsFp8()
                      ? kernels::reference::FloatToE4m3(static_cast<float>(x))
                      : static_cast<uint8_t>(x);
    x_[i] = IsFp8() ? kernels::reference::E4m3ToFloat(x_codes_[i])
                    : static_cast<float>(x);
  }
  for (int64_t i = 0; i < m; ++i) {
    x_scales_.push_back(any ? random.Uniform(0.001f, 1.0f) : 1.0f);
  }
  for (int64_t i = 0; i < n; ++i) {
    bias_.push_back(any ? random.Uniform(-1.0f, 1.0f)
                        : static_cast<float>(random.Int(-9, 9)));
  }
  x_pitch_ = RoundUp(k, int64_t{16}) + kExtraPitch;
  std::vector<uint8_t> x(static_cast<size_t>(m * x_pitch_), kPadCode);
  for (int64_t row = 0; row < m; ++row) {
    std::memcpy(x.data() + row * x_pitch_, x_codes_.data() + row * k, k);
  }
  x_device_ = ToDevice<uint8_t>(x);
  x_scales_device_ = ToDevice<float>(x_scales_);
  bias_device_ = ToDevice<float>(bias_);
  blocks_device_ = ToDevice<std::byte>(packed_.blocks);
  if (!packed_.row_scales.empty()) {
    row_scales_device_ = ToDevice<float>(packed_.row_scales);
  }
  if (!packed_.row_offsets.empty()) {
    row_offsets_device_ = ToDevice<float>(packed_.row_offsets);
  }
  if (format.HasMinimums()) {
    const std::vector<std::byte> poison(
        static_cast<size_t>(m * W4a8SumsPitch(format, k)),
        static_cast<std::byte>(kPoison));
    sums_device_ = ToDevice<std::byte>(poison);
    LaunchW4a8Prepare({.codes = x_device_.data(),
                       .pitch = x_pitch_,
                       .m = m,
                       .k = k,
                       .to = x_device_.data(),
                       .sums = sums_device_.data()},
                      format, Runner::Get().stream().get());
    Runner::Get().stream().Synchronize();
  }
}

W4a8Args W4a8Operands::Args(int64_t m) const {
  return {.w = {.format = problem_.format,
                .blocks = blocks_device_.data(),
                .row_scales = row_scales_device_.as<float>(),
                .row_offsets = row_offsets_device_.as<float>(),
                .n = problem_.n,
                .k = problem_.k},
          .x = {.codes = x_device_.data(),
                .pitch = x_pitch_,
                .scales = x_scales_device_.as<float>(),
                .sums = sums_device_.data()},
          .m = m,
          .bias = bias_device_.as<float>()};
}

void W4a8Operands::ExpectColumn(int64_t column, std::vector<W4A8Dot>& y) const {
  const auto& [format, m, n, k] = problem_;
  const bool rerounded = format.kind == W4a8Kind::kRerounded;
  std::vector<int> codes;
  for (int64_t i = 0; rerounded && i < k; ++i) {
    codes.push_back(W4a8CodeAt(packed_, column, i));
  }
  const int64_t groups = numbers_.Groups();
  for (int64_t row = 0; row < m; ++row) {
    const std::span<const float> x = RowOf(x_, row, k);
    W4A8Dot dot;
    if (rerounded) {
      int64_t sum = 0;
      for (int64_t i = 0; i < k; ++i) {
        sum += int64_t{codes[i]} * static_cast<int64_t>(x[i]);
      }
      dot.value = static_cast<double>(packed_.row_scales[column]) *
                  static_cast<double>(sum);
      dot.magnitude = std::fabs(dot.value);
    } else {
      dot = kernels::reference::DotOfW4A8(
          {.codes = RowOf(numbers_.codes, column, k),
           .scales = RowOf(numbers_.scales, column, groups),
           .minimums = RowOf(numbers_.minimums, column, groups),
           .group = numbers_.group},
          x);
    }
    const double x_scale = x_scales_[row], bias = bias_[column];
    y[row * n + column] = {
        .value = x_scale * dot.value + bias,
        .magnitude = x_scale * dot.magnitude + std::fabs(bias)};
  }
}

std::vector<W4A8Dot> W4a8Operands::Expected() const {
  std::vector<W4A8Dot> y(static_cast<size_t>(problem_.m * problem_.n));
  std::atomic<int64_t> next = 0;
  std::vector<std::thread> threads;
  const unsigned wanted = std::max(1u, std::thread::hardware_concurrency());
  for (unsigned i = 0; i < wanted; ++i) {
    threads.emplace_back([&] {
      for (int64_t c = next++; c < problem_.n; c = next++) ExpectColumn(c, y);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return y;
}

std::vector<std::byte> W4a8Operands::ExpectedSums() const {
  const auto& [format, m, n, k] = problem_;
  const int64_t pitch = W4a8SumsPitch(format, k);
  std::vector<uint16_t> sums(static_cast<size_t>(m * pitch / 2));
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t begin = 0; begin < k; begin += format.group) {
      const int64_t end = std::min(begin + format.group, k);
      double sum = 0;
      for (int64_t i = begin; i < end; ++i) sum += x_[row * k + i];
      const auto whole = static_cast<float>(sum);
      const uint16_t high = kernels::reference::FloatToBFloat16(whole);
      const uint16_t low = kernels::reference::FloatToBFloat16(
          whole - kernels::reference::BFloat16ToFloat(high));
      const int64_t group = begin / format.group;
      uint16_t* const to =
          sums.data() + row * pitch / 2 + group / 4 * 16 + group % 4 * 2;
      to[0] = to[1] = high;
      to[8] = to[9] = low;
    }
  }
  std::vector<std::byte> bytes(sums.size() * 2);
  std::memcpy(bytes.data(), sums.data(), bytes.size());
  return bytes;
}

std::vector<std::byte> W4a8Operands::Sums() const {
  std::vector<std::byte> bytes(static_cast<size_t>(
      problem_.m * W4a8SumsPitch(problem_.format, problem_.k)));
  NIBBLE_CUDA_CHECK(cudaMemcpy(bytes.data(), sums_device_.data(), bytes.size(),
                               cudaMemcpyDeviceToHost));
  return bytes;
}

double W4a8Residual(int64_t row, int64_t column) {
  return 0.25 * static_cast<double>((7 * row + 3 * column) % 17 - 8);
}

W4a8Output RunW4a8(const W4a8Operands& operands, int64_t m, DType y_dtype,
                   bool aligned, const LaunchSpec& spec, W4a8Then then) {
  const kernels::cuda::Stream& stream = Runner::Get().stream();
  W4a8Args args = operands.Args(m);
  const int64_t n = args.w.n, size = kernels::ElementBytes(y_dtype);
  args.y_dtype = y_dtype;
  args.ldy = aligned ? RoundUp(n, int64_t{8}) + 8 : n + 1 + n % 2;
  const int64_t pitch = args.ldy * size;
  const int64_t offset = pitch + (aligned ? 0 : size);
  const int64_t bytes = (m + kGuardRows) * pitch;
  DeviceBuffer y = DeviceBuffer::Make(bytes).value();
  std::vector<std::byte> host(static_cast<size_t>(bytes),
                              static_cast<std::byte>(kPoison));
  args.y = y.data() + offset;
  if (then == W4a8Then::kAdd) {
    args.residual = args.y;
    args.ld_residual = args.ldy;
    for (int64_t row = 0; row < m; ++row) {
      std::vector<float> values;
      for (int64_t i = 0; i < n; ++i) {
        values.push_back(static_cast<float>(W4a8Residual(row, i)));
      }
      const std::vector<std::byte> encoded = Encode(y_dtype, values);
      std::memcpy(host.data() + offset + row * pitch, encoded.data(),
                  encoded.size());
    }
  }
  NIBBLE_CUDA_CHECK(cudaMemcpyAsync(y.data(), host.data(), bytes,
                                    cudaMemcpyHostToDevice, stream.get()));
  LaunchW4a8(args, spec, Runner::Get().device(), stream.get());
  NIBBLE_CUDA_CHECK(cudaMemcpyAsync(host.data(), y.data(), bytes,
                                    cudaMemcpyDeviceToHost, stream.get()));
  stream.Synchronize();

  W4a8Output output;
  output.y.resize(static_cast<size_t>(m * n * size));
  for (int64_t row = 0; row < m; ++row) {
    std::byte* const from = host.data() + offset + row * pitch;
    std::memcpy(output.y.data() + row * n * size, from, n * size);
    std::memset(from, kPoison, n * size);
  }
  const auto wrong = std::find_if(host.begin(), host.end(), [](std::byte byte) {
    return byte != static_cast<std::byte>(kPoison);
  });
  if (wrong != host.end()) {
    output.problem = "written outside of y, " +
                     std::to_string(wrong - host.begin() - offset) +
                     " bytes from its beginning";
  }
  return output;
}

std::vector<LaunchSpec> W4a8Specs(const W4a8Problem& problem) {
  return W4a8Candidates(problem, Runner::Get().device());
}

}  // namespace nibble::test
