// W8A8 multiplications of gate/up weights that end in silu(gate) * up: every
// kind, form of the result and tile, any number of rows, ends of f anywhere in
// a unit. What f leaves of the last unit holds random weights, not zeros.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/checked_math.h"
#include "kernels/activation_codes.h"
#include "kernels/cuda/linear/w8a8.h"
#include "kernels/cuda/linear/w8a8_plan.h"
#include "kernels/reference/minifloat.h"
#include "tests/kernels/cuda/w4_harness.h"
#include "tests/kernels/cuda/w4_reference.h"
#include "tests/kernels/cuda/w8a8_harness.h"
#include "tests/support/random.h"

namespace nibble::test {
namespace {

using kernels::DType;
using kernels::Fp8;
using kernels::LaunchSpec;
using kernels::cuda::DeviceBuffer;
using kernels::cuda::kW8GateUpUnit;
using kernels::cuda::W8Args;
using kernels::cuda::W8Kind;
using kernels::cuda::W8Problem;
using kernels::cuda::W8Result;
using kernels::reference::CodedDot;

constexpr int64_t kM = 150;
constexpr int64_t kK = 528;
constexpr int64_t kCodeMultiple = 16;
constexpr int64_t kGuardRows = 2;
constexpr uint8_t kPoison = 0xff;  // a NaN in every type of number
constexpr W8Result kResults[] = {W8Result::kNumbers, W8Result::kInt8Tensor,
                                 W8Result::kE4m3Tensor, W8Result::kE4m3Block};

// A result that is expected, and how far off the kernel's may be before it is
// rounded or encoded. By value.
struct Expected {
  double value = 0;
  double error = 0;
};

// Of sums that no accumulator rounds, as those of the operands here: by FP32
// operations, at most one for each 128 of k, on what `dot` counts.
double SumError(W8Kind kind, const CodedDot& dot) {
  const bool by_steps =
      kind == W8Kind::kInt8Group || kind == W8Kind::kE4m3Block;
  return 0x1p-22 * std::fabs(dot.value) +
         (by_steps ? 0x1p-21 * dot.magnitude : 0);
}

Expected SiluMul(W8Kind kind, const CodedDot& gate, const CodedDot& up) {
  constexpr double kGreatestSlope = 1.1;  // of silu
  const double silu = gate.value / (1 + std::exp(-gate.value));
  const double value = silu * up.value;
  return {.value = value,
          .error = kGreatestSlope * SumError(kind, gate) *
                       (std::fabs(up.value) + SumError(kind, up)) +
                   std::fabs(silu) * SumError(kind, up) +
                   0x1p-19 * std::fabs(value) + 0x1p-100};
}

// What one launch left. By value.
struct Output {
  std::vector<uint8_t> y;     // [m, ldy] of bytes or of numbers
  std::vector<float> scales;  // of kE4m3Block, [blocks, pitch]
  float greatest = 0;
  int64_t row_bytes = 0;
};

// Operands with n = W8GateUpRows(f), and what they should give.
class GateUp final {
 public:
  GateUp(W8Kind kind, int64_t f, int64_t m, int fill = -1)
      : kind_(kind),
        f_(f),
        m_(m),
        operands_({.problem = {kind, m, kernels::cuda::W8GateUpRows(f), kK},
                   .codes = IsInt8(kind) ? W8Codes::kAny : W8Codes::kSparse,
                   .least_scale = IsInt8(kind) ? 0x1p-9f : 0.25f,
                   .greatest_scale = IsInt8(kind) ? 0x1p-8f : 0.5f,
                   .fill = fill,
                   .seed = static_cast<uint64_t>(f)}) {
    const W8Reference dots = W8Reference::Make(operands_);
    for (int64_t row = 0; row < m; ++row) {
      for (int64_t i = 0; i < f; ++i) {
        const int64_t gate =
            i / kW8GateUpUnit * 2 * kW8GateUpUnit + i % kW8GateUpUnit;
        expected_.push_back(SiluMul(kind, dots.At(row, gate),
                                    dots.At(row, gate + kW8GateUpUnit)));
        greatest_ = std::max(greatest_, std::fabs(expected_.back().value));
      }
    }
  }

  W8Operands& operands() { return operands_; }
  W8Kind kind() const { return kind_; }
  int64_t f() const { return f_; }
  int64_t n() const { return operands_.problem().n; }
  double greatest() const { return greatest_; }
  const Expected& At(int64_t row, int64_t column) const {
    return expected_[row * f_ + column];
  }
  int64_t blocks() const { return DivideUp(f_, kernels::kScaleBlock); }

  std::vector<LaunchSpec> Specs(int64_t m) const {
    const auto& device = W8Runner::Get().device();
    std::vector<LaunchSpec> specs;
    const W8Problem problem{kind_, m, n(), kK};
    for (const auto& tile : kernels::cuda::kW8SiluMulTiles) {
      for (const int cluster : {1, 2, 4}) {
        const LaunchSpec spec =
            kernels::cuda::W8SiluMulSpec(kind_, {tile, cluster});
        if (kernels::cuda::W8SiluMulFeasible(problem, spec, device)) {
          specs.push_back(spec);
        }
      }
    }
    return specs;
  }

  // One launch with rows `padding` elements longer than they must be. Fails
  // the test where something else than the result was written.
  Output Run(int64_t m, W8Result result, const LaunchSpec& spec,
             float scale = 1, DType dtype = DType::kF32,
             const float* bias = nullptr, int64_t padding = 16) const {
    const W8Runner& runner = W8Runner::Get();
    const bool codes = result != W8Result::kNumbers;
    const int64_t size = codes ? 1 : kernels::ElementBytes(dtype);
    W8Args args = operands_.Args(m);
    args.ldy = (codes ? RoundUp(f_, kCodeMultiple) : f_) + padding;
    args.y_dtype = dtype;
    args.bias = bias;
    Output output;
    output.row_bytes = args.ldy * size;
    const std::vector<uint8_t> poison((m + kGuardRows) * output.row_bytes,
                                      kPoison);
    const DeviceBuffer y = ToDevice<uint8_t>(poison);
    args.y = y.data();
    const int64_t pitch = kernels::BlockScalePitch(m);
    std::vector<float> before(blocks() * pitch + 4, -1);
    before[0] = result == W8Result::kE4m3Block ? -1 : scale;
    const DeviceBuffer scales = ToDevice<float>(before);
    const float none = 0;
    const DeviceBuffer greatest = ToDevice<float>({&none, 1});
    args.silu_mul = {.f = f_,
                     .result = result,
                     .scales = scales.as<float>(),
                     .scales_pitch = pitch,
                     .greatest = greatest.as<float>()};
    kernels::cuda::LaunchW8(args, spec, runner.device(), runner.stream().get());
    runner.stream().Synchronize();
    output.y.resize(poison.size());
    output.scales.resize(before.size());
    const auto copy = [](void* to, const DeviceBuffer& from) {
      NIBBLE_CUDA_CHECK(
          cudaMemcpy(to, from.data(), from.bytes(), cudaMemcpyDeviceToHost));
    };
    copy(output.y.data(), y);
    copy(output.scales.data(), scales);
    copy(&output.greatest, greatest);
    CheckBorders(m, result, size, output);
    return output;
  }

 private:
  void CheckBorders(int64_t m, W8Result result, int64_t size,
                    const Output& output) const {
    const int64_t zeros_end =
        result == W8Result::kNumbers ? f_ : RoundUp(f_, kCodeMultiple);
    for (int64_t at = 0; at < static_cast<int64_t>(output.y.size()); ++at) {
      const int64_t row = at / output.row_bytes;
      const int64_t column = at % output.row_bytes / size;
      if (row < m && column < f_) continue;
      ASSERT_EQ(output.y[at], row < m && column < zeros_end ? 0 : kPoison)
          << "y[" << row << ", " << column << "]";
    }
    const int64_t pitch = kernels::BlockScalePitch(m);
    const bool written = result == W8Result::kE4m3Block;
    for (size_t at = 0; at < output.scales.size(); ++at) {
      const auto block = static_cast<int64_t>(at) / pitch;
      if (written && block < blocks() && static_cast<int64_t>(at) % pitch < m) {
        continue;
      }
      if (!written && at == 0) continue;
      ASSERT_EQ(output.scales[at], -1) << "scale " << at;
    }
  }

  W8Kind kind_;
  int64_t f_, m_;
  W8Operands operands_;
  std::vector<Expected> expected_;  // [m, f]
  double greatest_ = 0;
};

// The number that a code stands for, without its scale.
double DecodeCode(W8Result result, uint8_t code) {
  return result == W8Result::kInt8Tensor
             ? static_cast<int8_t>(code)
             : kernels::reference::E4m3ToFloat(code);
}
uint8_t EncodeCode(W8Result result, double scaled) {
  if (result != W8Result::kInt8Tensor) {
    return kernels::reference::FloatToE4m3(static_cast<float>(scaled));
  }
  // The mode is to nearest, ties to even.
  return static_cast<uint8_t>(
      static_cast<int8_t>(std::nearbyint(std::clamp(scaled, -127.0, 127.0))));
}

// "" or how `code` is none that a value as near as `expected` says has.
std::string CheckCode(W8Result result, uint8_t code, const Expected& expected,
                      double scale) {
  const double error =
      expected.error + 0x1p-21 * std::fabs(expected.value);  // of 1 / scale
  const double got = DecodeCode(result, code);
  const double low =
      DecodeCode(result, EncodeCode(result, (expected.value - error) / scale));
  const double high =
      DecodeCode(result, EncodeCode(result, (expected.value + error) / scale));
  if (low <= got && got <= high) return "";
  return std::to_string(got) + " is not in [" + std::to_string(low) + ", " +
         std::to_string(high) + "]";
}

class W8SiluMulTest : public W8KindTest {
 protected:
  // All of a result against the reference.
  static void Check(const GateUp& layer, int64_t m, W8Result result,
                    float scale, const Output& output) {
    const int64_t pitch = kernels::BlockScalePitch(m);
    for (int64_t row = 0; row < m; ++row) {
      for (int64_t i = 0; i < layer.f(); ++i) {
        const double of =
            result == W8Result::kE4m3Block
                ? output.scales[i / kernels::kScaleBlock * pitch + row]
                : scale;
        ASSERT_EQ(CheckCode(result, output.y[row * output.row_bytes + i],
                            layer.At(row, i), of),
                  "")
            << "y[" << row << ", " << i << "]";
      }
    }
    if (result != W8Result::kE4m3Block) {
      ASSERT_NEAR(output.greatest, GreatestIn(layer, m, 0, layer.f()).value,
                  GreatestIn(layer, m, 0, layer.f()).error);
    }
  }

  // Of rows [0, m) and columns [begin, end), with the greatest error.
  static Expected GreatestIn(const GateUp& layer, int64_t m, int64_t begin,
                             int64_t end, int64_t first_row = 0) {
    Expected greatest;
    for (int64_t row = first_row; row < m; ++row) {
      for (int64_t i = begin; i < std::min(end, layer.f()); ++i) {
        const Expected& at = layer.At(row, i);
        greatest.value = std::max(greatest.value, std::fabs(at.value));
        greatest.error = std::max(greatest.error, at.error);
      }
    }
    return greatest;
  }

  static float ScaleFor(const GateUp& layer, W8Result result, double part) {
    const double top =
        result == W8Result::kInt8Tensor ? 127 : Greatest(Fp8::kE4m3);
    return static_cast<float>(layer.greatest() * part / top);
  }
};

constexpr int64_t kWidths[] = {1, 56, 128, 130, 333};

// "kNumbers" of every type, with rows that are aligned and that are not.
TEST_P(W8SiluMulTest, NumbersAreRight) {
  for (const int64_t f : kWidths) {
    const GateUp layer(GetParam(), f, kM);
    for (const LaunchSpec& spec : layer.Specs(kM)) {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        for (const int64_t padding : {RoundUp(f, int64_t{8}) - f, int64_t{3}}) {
          const Output output = layer.Run(kM, W8Result::kNumbers, spec, 1,
                                          dtype, nullptr, padding);
          if (HasFatalFailure()) return;
          const int64_t size = kernels::ElementBytes(dtype);
          const double rounding = dtype == DType::kF32    ? 0
                                  : dtype == DType::kBF16 ? 0x1p-8
                                                          : 0x1p-11;
          for (int64_t row = 0; row < kM; ++row) {
            for (int64_t i = 0; i < f; ++i) {
              const Expected& at = layer.At(row, i);
              const double got = Decode(
                  dtype,
                  reinterpret_cast<const std::byte*>(
                      output.y.data() + row * output.row_bytes + i * size));
              ASSERT_NEAR(got, at.value,
                          at.error + rounding * std::fabs(at.value) + 0x1p-25)
                  << spec.ToString() << " f=" << f << " [" << row << ", " << i
                  << "]";
            }
          }
        }
      }
    }
  }
}

// Scales that fit, and some four times too small, where most codes saturate.
TEST_P(W8SiluMulTest, CodesAreRight) {
  for (const int64_t f : kWidths) {
    const GateUp layer(GetParam(), f, kM);
    for (const LaunchSpec& spec : layer.Specs(kM)) {
      for (const W8Result result : kResults) {
        if (result == W8Result::kNumbers) continue;
        for (const double part : {1.0, 0.25}) {
          const float scale = ScaleFor(layer, result, part);
          const Output output = layer.Run(kM, result, spec, scale);
          if (HasFatalFailure()) return;
          Check(layer, kM, result, scale, output);
          ASSERT_FALSE(HasFatalFailure())
              << spec.ToString() << " f=" << f << " result "
              << static_cast<int>(result) << " part " << part;
        }
      }
    }
  }
}

TEST_P(W8SiluMulTest, ScalesOfBlocksAreTheirGreatestValues) {
  for (const int64_t f : kWidths) {
    const GateUp layer(GetParam(), f, kM);
    const int64_t pitch = kernels::BlockScalePitch(kM);
    for (const LaunchSpec& spec : layer.Specs(kM)) {
      const Output output = layer.Run(kM, W8Result::kE4m3Block, spec);
      if (HasFatalFailure()) return;
      for (int64_t row = 0; row < kM; ++row) {
        for (int64_t block = 0; block < layer.blocks(); ++block) {
          const int64_t begin = block * kernels::kScaleBlock;
          Expected greatest = GreatestIn(layer, row + 1, begin,
                                         begin + kernels::kScaleBlock, row);
          greatest.value = std::max(greatest.value, double{kernels::kLeastMax});
          ASSERT_NEAR(
              output.scales[block * pitch + row] * double{Greatest(Fp8::kE4m3)},
              greatest.value, greatest.error + 0x1p-22 * greatest.value)
              << spec.ToString() << " f=" << f << " [" << row << "], block "
              << block;
        }
      }
    }
  }
}

// A row is the same bits whatever the other rows, the tile and the cluster are.
TEST_P(W8SiluMulTest, IsTheSameBitsForAnyRowsAndTiles) {
  const GateUp layer(GetParam(), 333, kM);
  for (const W8Result result : kResults) {
    const float scale = ScaleFor(layer, result, 1);
    const Output all = layer.Run(kM, result, layer.Specs(kM)[0], scale);
    const int64_t all_pitch = kernels::BlockScalePitch(kM);
    for (const int64_t m : AllRows()) {
      if (m > kM) continue;
      const int64_t pitch = kernels::BlockScalePitch(m);
      for (const LaunchSpec& spec : layer.Specs(m)) {
        const Output output = layer.Run(m, result, spec, scale);
        if (HasFatalFailure()) return;
        ASSERT_EQ(
            std::memcmp(output.y.data(), all.y.data(), m * output.row_bytes), 0)
            << spec.ToString() << " m=" << m;
        if (result != W8Result::kE4m3Block) continue;
        for (int64_t block = 0; block < layer.blocks(); ++block) {
          ASSERT_EQ(std::memcmp(output.scales.data() + block * pitch,
                                all.scales.data() + block * all_pitch,
                                m * sizeof(float)),
                    0)
              << spec.ToString() << " m=" << m;
        }
      }
    }
  }
}

TEST_P(W8SiluMulTest, ZerosGiveZerosAndANormalScale) {
  const GateUp layer(GetParam(), 130, kM, 0);
  for (const LaunchSpec& spec : layer.Specs(kM)) {
    for (const W8Result result : kResults) {
      const Output output = layer.Run(kM, result, spec);
      if (HasFatalFailure()) return;
      for (int64_t row = 0; row < kM; ++row) {
        for (int64_t i = 0; i < layer.f(); ++i) {
          ASSERT_EQ(output.y[row * output.row_bytes + i], 0);
        }
        if (result == W8Result::kE4m3Block) {
          ASSERT_EQ(output.scales[row],
                    kernels::kLeastMax / Greatest(Fp8::kE4m3));
        }
      }
    }
  }
}

// A NaN and an infinity, brought by the bias of gate and of up, are seen: in
// their code, in their block's scale or, where codes have no NaN, in the
// greatest value.
TEST_P(W8SiluMulTest, WhatIsNotFiniteIsNotHidden) {
  constexpr int64_t kColumn = 200;
  constexpr int64_t kGate = 2 * kW8GateUpUnit + kColumn % kW8GateUpUnit;
  const GateUp layer(GetParam(), 333, kM);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity()}) {
    for (const int64_t place : {kGate, kGate + kW8GateUpUnit}) {
      std::vector<float> bias(layer.n());
      bias[place] = bad;
      const DeviceBuffer device_bias = ToDevice<float>(bias);
      for (const LaunchSpec& spec : layer.Specs(kM)) {
        for (const W8Result result :
             {W8Result::kInt8Tensor, W8Result::kE4m3Tensor,
              W8Result::kE4m3Block}) {
          const float scale = ScaleFor(layer, result, 1);
          const Output output = layer.Run(kM, result, spec, scale, DType::kF32,
                                          device_bias.as<float>());
          if (HasFatalFailure()) return;
          const int64_t pitch = kernels::BlockScalePitch(kM);
          for (int64_t row = 0; row < kM; ++row) {
            for (int64_t i = 0; i < layer.f(); ++i) {
              const uint8_t code = output.y[row * output.row_bytes + i];
              const int64_t block = i / kernels::kScaleBlock;
              const bool nan = (code & 0x7f) == 0x7f;
              if (result == W8Result::kInt8Tensor) {
                ASSERT_TRUE(i != kColumn || code == 0) << row;
              } else if (result == W8Result::kE4m3Tensor) {
                ASSERT_EQ(nan, i == kColumn) << row << " " << i;
              } else {
                const bool in_block = block == kColumn / kernels::kScaleBlock;
                ASSERT_EQ(nan, in_block) << row << " " << i;
                ASSERT_EQ(std::isnan(output.scales[block * pitch + row]),
                          in_block);
              }
            }
          }
          if (result != W8Result::kE4m3Block) {
            ASSERT_FALSE(std::isfinite(output.greatest)) << spec.ToString();
          }
        }
      }
    }
  }
}

std::string KindName(const ::testing::TestParamInfo<W8Kind>& info) {
  return std::string(kernels::cuda::W8KindName(info.param));
}
INSTANTIATE_TEST_SUITE_P(Kinds, W8SiluMulTest,
                         ::testing::ValuesIn(kernels::cuda::kW8Kinds),
                         KindName);

}  // namespace
}  // namespace nibble::test
