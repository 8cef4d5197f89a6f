// What the tests of the CPU backend share.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/activations.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/row_ops.h"
#include "tests/support/quantize.h"
#include "tests/support/random.h"

namespace nibble::test {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline std::unique_ptr<kernels::Backend> MakeBackend(
    int threads,
    kernels::cpu::CpuTarget target = kernels::cpu::CpuTarget::kAvx512Vnni) {
  return kernels::MakeCpuBackend({.threads = threads, .max_target = target})
      .value();
}

// A matrix of floats with `guard` columns after each row and after the last,
// all filled with a pattern, to see that just the rows were written.
class GuardedMatrix final {
 public:
  GuardedMatrix(int64_t rows, int64_t cols)
      : rows_(rows),
        cols_(cols),
        values_(static_cast<size_t>(rows * (cols + kGuard)), kPoison) {}

  kernels::TensorView View() {
    return {.data = values_.data(),
            .rows = rows_,
            .cols = cols_,
            .row_stride = cols_ + kGuard};
  }
  std::span<float> Row(int64_t row) {
    return std::span<float>(values_).subspan(row * (cols_ + kGuard), cols_);
  }
  bool GuardsAreWhole() const {
    for (int64_t i = 0; i < rows_ * (cols_ + kGuard); ++i) {
      if (i % (cols_ + kGuard) >= cols_ && values_[i] != kPoison) return false;
    }
    return true;
  }

 private:
  static constexpr int64_t kGuard = 19;
  static constexpr float kPoison = -12345.678f;

  int64_t rows_;
  int64_t cols_;
  std::vector<float> values_;
};

// Activations [rows, k] holding x in every encoding, whatever layers exist.
inline std::unique_ptr<kernels::Activations> Encode(std::span<const float> x,
                                                    int64_t rows, int64_t k) {
  static constexpr kernels::cpu::ActivationUse kFloats{.floats = true};
  static constexpr kernels::cpu::ActivationUse kBoth{.codes = true,
                                                     .floats = true};
  const bool codes = k % kernels::cpu::kBlock == 0;
  std::unique_ptr<kernels::Activations> activations =
      kernels::cpu::CpuActivations::Create(rows, k, codes ? &kBoth : &kFloats)
          .value();
  auto& to = static_cast<kernels::cpu::CpuActivations&>(*activations);
  for (int64_t row = 0; row < rows; ++row) {
    kernels::cpu::EncodeRow(
        x.data() + row * k, k,
        {.codes = codes ? to.Quad(row / kernels::cpu::kQuad) : nullptr,
         .lane = static_cast<int>(row % kernels::cpu::kQuad),
         .floats = to.FloatRow(row)});
  }
  return activations;
}

// What the codes of a row stand for: [k].
inline std::vector<double> DecodeRow(const kernels::Activations& activations,
                                     int64_t row) {
  using kernels::cpu::kBlock;
  using kernels::cpu::kQuad;
  const auto& x = static_cast<const kernels::cpu::CpuActivations&>(activations);
  std::vector<double> values;
  for (int64_t b = 0; b < x.blocks(); ++b) {
    const kernels::cpu::QuadBlock& block = x.Quad(row / kQuad)[b];
    for (int i = 0; i < kBlock; ++i) {
      values.push_back(
          static_cast<double>(block.scale[row % kQuad]) *
          (block.codes[row % kQuad][i] + block.all[row % kQuad].neg_zero));
    }
  }
  return values;
}

inline bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// A multiple of every format's block near `k`.
inline int64_t FitK(kernels::QuantFormat format, int64_t k) {
  const int64_t block = kernels::Info(format).block_elements;
  return block > 32 ? std::max<int64_t>(k / block, 1) * block : k;
}

inline std::unique_ptr<kernels::LinearOp> MakeOp(kernels::Backend& backend,
                                                 const TestWeight& weight) {
  const kernels::WeightView view = weight.View();
  return backend.MakeLinear({&view, 1}, {.name = "test", .gather = true})
      .value();
}

}  // namespace nibble::test
