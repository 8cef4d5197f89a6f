#include "bench/gpu_w8a8_operands.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <utility>

#include "base/check.h"
#include "base/checked_math.h"
#include "base/status.h"
#include "bench/gpu_check.h"
#include "kernels/reference/minifloat.h"

namespace nibble::bench {
namespace {

using kernels::cuda::DeviceBuffer;
using kernels::cuda::Stream;
using kernels::cuda::W8Args;
using kernels::cuda::W8Kind;
using kernels::cuda::W8Scaling;
using kernels::reference::CodedMatrix;
using kernels::reference::CodeType;

// Ten times the L2 of an H200: what a graph reads again it finds nothing of.
constexpr int64_t kRotationBytes = 600'000'000;
constexpr int64_t kAlignment = 256;
constexpr int64_t kBlock = kernels::cuda::kW8BlockK;

// E4M3 codes of 65,536 normal numbers, so that 16 random bits choose one.
const std::vector<uint8_t>& NormalCodes() {
  static const std::vector<uint8_t> codes = [] {
    std::vector<uint8_t> made(1 << 16);
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal;
    for (uint8_t& code : made) {
      code = kernels::reference::FloatToE4m3(normal(random));
    }
    return made;
  }();
  return codes;
}

std::vector<uint8_t> RandomCodes(CodeType type, int64_t rows, int64_t k,
                                 uint64_t seed) {
  std::vector<uint8_t> codes(static_cast<size_t>(rows * k));
  const std::vector<uint8_t>& normal = NormalCodes();
  ParallelFor(rows, [&](int64_t row) {
    std::mt19937_64 random(seed << 32 | static_cast<uint64_t>(row));
    uint8_t* const to = codes.data() + row * k;
    for (int64_t i = 0; i < k; i += 4) {
      const uint64_t bits = random();
      for (int j = 0; j < 4; ++j) {
        const auto part = static_cast<uint16_t>(bits >> 16 * j);
        to[i + j] =
            type == CodeType::kInt8 ? static_cast<uint8_t>(part) : normal[part];
      }
    }
  });
  return codes;
}

absl::StatusOr<DeviceBuffer> Upload(const void* from, int64_t bytes) {
  NIBBLE_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Make(bytes));
  NIBBLE_CUDA_CHECK(
      cudaMemcpy(buffer.data(), from, bytes, cudaMemcpyHostToDevice));
  return buffer;
}

}  // namespace

absl::StatusOr<CodedOperands::Scales> CodedOperands::MakeScales(int64_t count,
                                                                uint64_t seed) {
  Scales scales;
  scales.host.resize(static_cast<size_t>(count));
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(0.005f, 0.015f);
  for (float& scale : scales.host) scale = uniform(random);
  NIBBLE_ASSIGN_OR_RETURN(scales.device, Upload(scales.host.data(), count * 4));
  return scales;
}

// Copies of W are those rows in another order: as random, and soon made.
absl::Status CodedOperands::MakeWeights(const Stream& stream) {
  const int64_t bytes = shape_.n * shape_.k;
  const int64_t stride = RoundUp(bytes, kAlignment);
  const int64_t copies = std::max<int64_t>(2, DivideUp(kRotationBytes, stride));
  NIBBLE_ASSIGN_OR_RETURN(w_device_, DeviceBuffer::Make(copies * stride));
  rotation_ = {.data = w_device_.data(),
               .bytes = bytes,
               .stride = stride,
               .copies = static_cast<int>(copies)};
  NIBBLE_CUDA_CHECK(cudaMemcpyAsync(w_device_.data(), w_.data(), bytes,
                                    cudaMemcpyHostToDevice, stream.get()));
  for (int64_t copy = 1; copy < copies; ++copy) {
    constexpr int64_t kRowsOn = 37;
    const int64_t cut = copy * kRowsOn % shape_.n * shape_.k;
    std::byte* const to = w_device_.data() + copy * stride;
    NIBBLE_CUDA_CHECK(cudaMemcpyAsync(to, w_device_.data() + cut, bytes - cut,
                                      cudaMemcpyDeviceToDevice, stream.get()));
    NIBBLE_CUDA_CHECK(cudaMemcpyAsync(to + bytes - cut, w_device_.data(), cut,
                                      cudaMemcpyDeviceToDevice, stream.get()));
  }
  stream.Synchronize();
  return absl::OkStatus();
}

absl::StatusOr<CodedOperands> CodedOperands::Make(CodeType type, Shape shape,
                                                  int64_t max_m,
                                                  const Stream& stream) {
  NIBBLE_CHECK(shape.n % kernels::cuda::kW8RowGroup == 0);
  NIBBLE_CHECK(shape.k % (4 * kBlock) == 0);
  CodedOperands made;
  made.type_ = type;
  made.shape_ = shape;
  made.x_ = RandomCodes(type, max_m, shape.k, 1);
  made.w_ = RandomCodes(type, shape.n, shape.k, 2);
  NIBBLE_ASSIGN_OR_RETURN(made.x_device_,
                          Upload(made.x_.data(), max_m * shape.k));
  NIBBLE_RETURN_IF_ERROR(made.MakeWeights(stream));
  const int64_t k_blocks = shape.k / kBlock;
  NIBBLE_ASSIGN_OR_RETURN(made.x_rows_, MakeScales(max_m, 3));
  NIBBLE_ASSIGN_OR_RETURN(made.w_rows_, MakeScales(shape.n, 4));
  for (int64_t row = 0; row < shape.n; ++row) {
    made.packed_w_rows_.push_back(
        made.w_rows_.host[kernels::cuda::W8PackedRow(row)]);
  }
  NIBBLE_ASSIGN_OR_RETURN(made.x_blocks_,
                          MakeScales(k_blocks * ScalesPitch(max_m), 5));
  NIBBLE_ASSIGN_OR_RETURN(made.w_blocks_,
                          MakeScales(DivideUp(shape.n, kBlock) * k_blocks, 6));
  NIBBLE_ASSIGN_OR_RETURN(made.w_groups_, MakeScales(shape.n * k_blocks, 7));
  for (int64_t group = 0; group < k_blocks; ++group) {
    for (int64_t row = 0; row < shape.n; ++row) {
      made.packed_w_groups_.push_back(
          made.w_groups_
              .host[group * shape.n + kernels::cuda::W8PackedRow(row)]);
    }
  }
  return made;
}

const float* CodedOperands::XScales(W8Scaling scaling) const {
  return (scaling == W8Scaling::kBlock ? x_blocks_ : x_rows_)
      .device.as<float>();
}

const float* CodedOperands::WScales(W8Scaling scaling) const {
  const Scales& scales = scaling == W8Scaling::kBlock   ? w_blocks_
                         : scaling == W8Scaling::kGroup ? w_groups_
                                                        : w_rows_;
  return scales.device.as<float>();
}

W8Args CodedOperands::Args(W8Kind kind, W8Scaling scaling, int64_t m,
                           int64_t node) const {
  return {
      .kind = kind,
      .w = {.codes = rotation_.At(node),
            .n = shape_.n,
            .k = shape_.k,
            .pitch = shape_.k,
            .scales = WScales(scaling),
            .scaling = scaling,
            .scales_pitch = shape_.n},
      .x = {.codes = x(),
            .pitch = shape_.k,
            .scales = XScales(scaling),
            .scaling = scaling == W8Scaling::kGroup ? W8Scaling::kRow : scaling,
            .scales_pitch = ScalesPitch(m)},
      .m = m,
      .ldy = shape_.n};
}

CodedMatrix CodedOperands::X(W8Scaling scaling, int64_t m) const {
  CodedMatrix x{.type = type_, .codes = x_, .k = shape_.k};
  switch (scaling) {
    case W8Scaling::kTensor:
      x.grid = {.scales = x_rows_.host};
      break;
    case W8Scaling::kRow:
    case W8Scaling::kGroup:
      x.grid = {.scales = x_rows_.host, .rows = 1, .row_step = 1};
      break;
    case W8Scaling::kBlock:
      x.grid = {.scales = x_blocks_.host,
                .rows = 1,
                .ks = kBlock,
                .row_step = 1,
                .k_step = ScalesPitch(m)};
      break;
  }
  return x;
}

CodedMatrix CodedOperands::W(W8Scaling scaling, bool packed) const {
  CodedMatrix w{.type = type_, .codes = w_, .k = shape_.k};
  switch (scaling) {
    case W8Scaling::kTensor:
      w.grid = {.scales = w_rows_.host};
      break;
    case W8Scaling::kRow:
      w.grid = {.scales = packed ? packed_w_rows_ : w_rows_.host,
                .rows = 1,
                .row_step = 1};
      break;
    case W8Scaling::kBlock:
      w.grid = {.scales = w_blocks_.host,
                .rows = kBlock,
                .ks = kBlock,
                .row_step = shape_.k / kBlock,
                .k_step = 1};
      break;
    case W8Scaling::kGroup:
      w.grid = {.scales = packed_w_groups_,
                .rows = 1,
                .ks = kBlock,
                .row_step = 1,
                .k_step = shape_.n};
      break;
  }
  return w;
}

}  // namespace nibble::bench
