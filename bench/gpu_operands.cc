#include "bench/gpu_operands.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "bench/gpu_probes.h"
#include "kernels/cuda/linear/pack.h"
#include "kernels/reference/half.h"

namespace nibble::bench {
namespace {

using kernels::DType;
using kernels::cuda::DeviceBuffer;
using kernels::cuda::kTileRows;
using kernels::cuda::PackedW4;
using kernels::cuda::Stream;
using kernels::cuda::W4Code;
using kernels::cuda::W4Scale;

// Ten times the L2 of an H200: what a graph reads again it finds nothing of.
constexpr int64_t kRotationBytes = 600'000'000;

constexpr W4Format kFormats[] = {
    {"int4-g128", {W4Code::kInt4, W4Scale::kScaleMin, 128}},
    {"q4_0", {W4Code::kInt4, W4Scale::kScale, 32}},
    {"q4_1", {W4Code::kInt4, W4Scale::kScaleMin, 32}},
    {"q4_k", {W4Code::kInt4, W4Scale::kQ4K, 32}},
    {"awq-g128", {W4Code::kInt4, W4Scale::kScaleZero, 128}},
    {"gptq-g128", {W4Code::kInt4, W4Scale::kScaleZero, 128}},
    {"mxfp4", {W4Code::kE2m1, W4Scale::kE8m0, 32}},
    {"nvfp4",
     {W4Code::kE2m1, W4Scale::kE4m3, 16},
     0.003f * (int64_t{1} << kernels::cuda::kE5m3TensorLog2)},
};

void CopyToHost(void* to, const std::byte* from, int64_t bytes) {
  NIBBLE_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}

}  // namespace

std::optional<W4Format> W4FormatByName(std::string_view name) {
  for (const W4Format& format : kFormats) {
    if (format.name == name) return format;
  }
  return std::nullopt;
}

std::string W4FormatNames() {
  std::string names;
  for (const W4Format& format : kFormats) {
    absl::StrAppend(&names, names.empty() ? "" : ",", std::string(format.name));
  }
  return names;
}

absl::StatusOr<Weights> Weights::Allocate(int64_t bytes) {
  constexpr int64_t kAlignment = 256;
  const int64_t stride = kernels::cuda::CeilDiv(bytes, kAlignment) * kAlignment;
  const int64_t copies =
      std::max<int64_t>(2, kernels::cuda::CeilDiv(kRotationBytes, stride));
  Weights weights;
  NIBBLE_ASSIGN_OR_RETURN(weights.buffer_, DeviceBuffer::Make(copies * stride));
  weights.rotation_ = {.data = weights.buffer_.data(),
                       .bytes = bytes,
                       .stride = stride,
                       .copies = static_cast<int>(copies)};
  return weights;
}

absl::StatusOr<Weights> Weights::MakeW4(const W4Format& format, Shape shape,
                                        const Stream& stream) {
  NIBBLE_CHECK(shape.n % kTileRows == 0);
  NIBBLE_CHECK(shape.k % kernels::cuda::kBlockK == 0);
  const int64_t bytes =
      kernels::cuda::PackedBytes(format.layout, shape.n, shape.k);
  NIBBLE_ASSIGN_OR_RETURN(Weights weights, Allocate(bytes));
  weights.shape_ = shape;
  weights.format_ = format;
  for (int copy = 0; copy < weights.rotation_.copies; ++copy) {
    LaunchFillPacked(format.layout,
                     weights.buffer_.data() + copy * weights.rotation_.stride,
                     bytes, 100 + copy, stream.get());
  }
  stream.Synchronize();
  return weights;
}

absl::StatusOr<Weights> Weights::MakeDense(DType dtype, Shape shape,
                                           const Stream& stream) {
  const int64_t count = shape.n * shape.k;
  NIBBLE_ASSIGN_OR_RETURN(Weights weights,
                          Allocate(count * kernels::ElementBytes(dtype)));
  weights.shape_ = shape;
  weights.dtype_ = dtype;
  for (int copy = 0; copy < weights.rotation_.copies; ++copy) {
    LaunchFillUniform(
        dtype, weights.buffer_.data() + copy * weights.rotation_.stride, count,
        {.low = -0.02f, .high = 0.02f}, 200 + copy, stream.get());
  }
  stream.Synchronize();
  return weights;
}

kernels::cuda::W4Weights Weights::W4(int64_t node) const {
  return {.blocks = rotation_.At(node),
          .n = shape_.n,
          .k = shape_.k,
          .layout = format_->layout,
          .tensor_scale = format_->tensor_scale};
}

UnpackRow Weights::ReadRows(int64_t begin, int64_t rows) const {
  if (!format_.has_value()) {
    auto bits = std::make_shared<std::vector<uint16_t>>(rows * shape_.k);
    CopyToHost(bits->data(), rotation_.data + 2 * begin * shape_.k,
               2 * rows * shape_.k);
    return
        [bits, begin, k = shape_.k, dtype = dtype_](int64_t row, float* out) {
          const uint16_t* values = bits->data() + (row - begin) * k;
          for (int64_t i = 0; i < k; ++i) {
            out[i] = dtype == DType::kF16
                         ? kernels::reference::HalfToFloat(values[i])
                         : kernels::reference::BFloat16ToFloat(values[i]);
          }
        };
  }
  const int64_t first_tile = begin / kTileRows;
  const int64_t tiles = kernels::cuda::Tiles(begin + rows) - first_tile;
  const int64_t tile_bytes =
      kernels::cuda::PackedBytes(format_->layout, kTileRows, shape_.k);
  auto packed = std::make_shared<PackedW4>();
  packed->n = tiles * kTileRows;
  packed->k = shape_.k;
  packed->layout = format_->layout;
  packed->tensor_scale = format_->tensor_scale;
  packed->blocks.resize(tiles * tile_bytes);
  CopyToHost(packed->blocks.data(), rotation_.data + first_tile * tile_bytes,
             tiles * tile_bytes);
  return [packed, first_tile](int64_t row, float* out) {
    UnpackW4Row(*packed, row - first_tile * kTileRows, out);
  };
}

}  // namespace nibble::bench
