#include "bench/gpu_w4a8_operands.h"

#include <algorithm>
#include <random>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/checked_math.h"
#include "base/status.h"
#include "bench/gpu_check.h"
#include "kernels/reference/minifloat.h"

namespace nibble::bench {
namespace {

using kernels::cuda::DeviceBuffer;
using kernels::cuda::W4a8Format;
using kernels::cuda::W4a8Kind;
using kernels::cuda::W4a8Weights;
using kernels::cuda::W4Numbers;

// Ten times the L2 of an H200: what a graph reads again it finds nothing of.
constexpr int64_t kRotationBytes = 600'000'000;
constexpr int64_t kAlignment = 256;

int Threads() {
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

absl::StatusOr<DeviceBuffer> Upload(const void* from, int64_t bytes) {
  NIBBLE_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Make(bytes));
  NIBBLE_CUDA_CHECK(
      cudaMemcpy(buffer.data(), from, bytes, cudaMemcpyHostToDevice));
  return buffer;
}

// Scales and minimums of a row whose weights are about as large everywhere.
void FillScales(W4Numbers& numbers, int64_t row, std::mt19937_64& random) {
  std::uniform_real_distribution<float> uniform(0.5f, 1.0f);
  constexpr float kScale = 0.01f;
  const int64_t groups = numbers.Groups();
  for (int64_t group = row * groups; group < (row + 1) * groups; ++group) {
    if (numbers.sub_scales.empty()) {
      numbers.scales[group] = kScale * uniform(random);
      numbers.minimums[group] =
          (numbers.symmetric ? -8 : -7.5f) * numbers.scales[group];
      continue;
    }
    constexpr int kMaxSub = 63;
    const int64_t super =
        group * numbers.group / kernels::cuda::kW4a8SuperBlock;
    if (group * numbers.group % kernels::cuda::kW4a8SuperBlock == 0) {
      numbers.super_scales[super] = kScale / kMaxSub * uniform(random);
    }
    const int sub = 24 + static_cast<int>(random() % (kMaxSub + 1 - 24));
    numbers.sub_scales[group] = static_cast<uint8_t>(sub);
    numbers.scales[group] =
        numbers.super_scales[super] * static_cast<float>(sub);
    numbers.minimums[group] = -7.5f * numbers.scales[group];
  }
}

}  // namespace

W4Numbers RandomNumbers(std::string_view name, Shape shape) {
  const bool q4k = name == "q4_k";
  W4Numbers numbers{.n = shape.n,
                    .k = shape.k,
                    .group = q4k || name == "q4_0" ? 32 : 128,
                    .symmetric = name == "q4_0" || name == "int4s-g128"};
  numbers.codes.resize(static_cast<size_t>(shape.n * shape.k));
  numbers.scales.resize(static_cast<size_t>(shape.n * numbers.Groups()));
  numbers.minimums.resize(numbers.scales.size());
  if (q4k) {
    NIBBLE_CHECK_EQ(shape.k % kernels::cuda::kW4a8SuperBlock, 0);
    numbers.super_scales.resize(static_cast<size_t>(
        shape.n * shape.k / kernels::cuda::kW4a8SuperBlock));
    numbers.sub_scales.resize(numbers.scales.size());
  }
  ParallelFor(shape.n, [&](int64_t row) {
    std::mt19937_64 random(row + 1);
    FillScales(numbers, row, random);
    uint8_t* const codes = numbers.codes.data() + row * shape.k;
    constexpr int kCodesInBits = 16;
    for (int64_t i = 0; i < shape.k; i += kCodesInBits) {
      const uint64_t bits = random();
      const auto count = std::min<int64_t>(kCodesInBits, shape.k - i);
      for (int64_t j = 0; j < count; ++j) codes[i + j] = bits >> 4 * j & 15;
    }
  });
  return numbers;
}

absl::StatusOr<W4a8Inputs> W4a8Inputs::Make(Shape shape, int64_t max_m) {
  W4a8Inputs made;
  made.k_ = shape.k;
  made.codes_.resize(static_cast<size_t>(max_m * shape.k));
  ParallelFor(max_m, [&](int64_t row) {
    std::mt19937 random(static_cast<uint32_t>(row));
    int8_t* const codes = made.codes_.data() + row * shape.k;
    for (int64_t i = 0; i < shape.k; ++i) {
      codes[i] = static_cast<int8_t>(static_cast<int>(random() % 255) - 127);
    }
  });
  std::vector<uint8_t> fp8(made.codes_.size());
  made.fp8_.resize(fp8.size());
  ParallelFor(max_m, [&](int64_t row) {
    for (int64_t i = row * shape.k; i < (row + 1) * shape.k; ++i) {
      fp8[i] = kernels::reference::FloatToE4m3(made.codes_[i]);
      made.fp8_[i] = kernels::reference::E4m3ToFloat(fp8[i]);
    }
  });
  NIBBLE_ASSIGN_OR_RETURN(made.fp8_device_,
                          Upload(fp8.data(), max_m * shape.k));
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(0.005f, 0.015f);
  for (int64_t row = 0; row < max_m; ++row) {
    made.scales_.push_back(uniform(random));
  }
  NIBBLE_ASSIGN_OR_RETURN(made.codes_device_,
                          Upload(made.codes_.data(), max_m * shape.k));
  NIBBLE_ASSIGN_OR_RETURN(made.scales_device_,
                          Upload(made.scales_.data(), max_m * 4));
  return made;
}

absl::StatusOr<W4a8Operand> W4a8Operand::Make(const W4Numbers& numbers,
                                              W4a8Format format) {
  W4a8Operand made;
  NIBBLE_ASSIGN_OR_RETURN(made.packed_, PackW4a8(numbers, format, Threads()));
  const auto bytes = static_cast<int64_t>(made.packed_.blocks.size());
  const int64_t stride = RoundUp(bytes, kAlignment);
  const int64_t copies = std::max<int64_t>(2, DivideUp(kRotationBytes, stride));
  NIBBLE_ASSIGN_OR_RETURN(made.blocks_, DeviceBuffer::Make(copies * stride));
  made.rotation_ = {.data = made.blocks_.data(),
                    .bytes = bytes,
                    .stride = stride,
                    .copies = static_cast<int>(copies)};
  for (int64_t copy = 0; copy < copies; ++copy) {
    NIBBLE_CUDA_CHECK(cudaMemcpy(
        made.blocks_.data() + copy * stride,
        copy == 0 ? made.packed_.blocks.data() : made.blocks_.data(), bytes,
        copy == 0 ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToDevice));
  }
  if (format.kind == W4a8Kind::kRerounded) {
    NIBBLE_ASSIGN_OR_RETURN(
        made.row_scales_,
        Upload(made.packed_.row_scales.data(), numbers.n * 4));
  }
  if (format.HasOffsets()) {
    NIBBLE_ASSIGN_OR_RETURN(
        made.row_offsets_,
        Upload(made.packed_.row_offsets.data(), numbers.n * 4));
  }
  NIBBLE_CUDA_CHECK(cudaDeviceSynchronize());
  return made;
}

W4a8Weights W4a8Operand::Weights(int64_t node) const {
  return {.format = packed_.format,
          .blocks = rotation_.At(node),
          .row_scales =
              packed_.row_scales.empty() ? nullptr : row_scales_.as<float>(),
          .row_offsets =
              packed_.row_offsets.empty() ? nullptr : row_offsets_.as<float>(),
          .n = packed_.n,
          .k = packed_.k};
}

}  // namespace nibble::bench
