// Weights in 8 bits, prepared once at load: rounded from floats or from any
// format of a checkpoint, or taken as an 8-bit checkpoint has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor.h"
#include "kernels/weight_view.h"

namespace nibble::kernels {

enum class ByteCode : uint8_t { kInt8, kE4m3 };

// Which weights of a matrix share a scale.
enum class ByteScaling : uint8_t {
  kTensor,   // all
  kChannel,  // a row
  kGroup,    // 128 columns of a row
  kBlock,    // 128 columns of 128 rows
};

// The shape of scales of W[n, k]: [1, 1], [n, 1], [n, k / 128] or [n / 128,
// k / 128], rounded up.
struct ScaleShape {
  int64_t rows = 0;
  int64_t cols = 0;
  // Weights that share one.
  int64_t tile_rows = 0;
  int64_t tile_cols = 0;

  static ScaleShape Of(ByteScaling scaling, int64_t n, int64_t k);
  int64_t count() const { return rows * cols; }
};

// W[n, k] in 8 bits: weight (i, j) is its code times the scale of its tile.
// Owned by whoever made it.
struct ByteWeight {
  ByteCode code = ByteCode::kInt8;
  ByteScaling scaling = ByteScaling::kChannel;
  int64_t n = 0;
  int64_t k = 0;
  std::vector<uint8_t> codes;  // [n, k], INT8 in [-127, 127] or E4M3's bits
  std::vector<float> scales;   // ScaleShape::Of(scaling, n, k)

  // Row `row` as numbers, out [k].
  void DequantizeRow(int64_t row, float* out) const;
};

struct ByteQuantizeOptions {
  ByteCode code = ByteCode::kInt8;
  ByteScaling scaling = ByteScaling::kChannel;
  // Tries smaller scales too, which clip the greatest weights and round the
  // rest more finely, and takes the one with the least sum of squared errors.
  bool search = true;
};

// Rounds w [n, k], to nearest, ties to even; codes saturate. Without search a
// scale is max |w| / 127 or / 448; a range below kLeastMax counts as kLeastMax.
// INVALID_ARGUMENT names a row with a NaN or an infinity, or a shape that `w`
// has not.
absl::StatusOr<ByteWeight> QuantizeWeight(std::span<const float> w, int64_t n,
                                          int64_t k,
                                          const ByteQuantizeOptions& options);
// The same of a checkpoint's matrix, which has passed CheckWeight; dequantizes
// all of it at once.
absl::StatusOr<ByteWeight> QuantizeWeight(const WeightView& weight,
                                          const ByteQuantizeOptions& options);

// A matrix of an 8-bit checkpoint (compressed-tensors, DeepSeek's block FP8).
// Borrowed, little endian, row major; no pointer need be aligned. By value.
struct ByteWeightView {
  std::string_view name;  // for messages
  ByteCode code = ByteCode::kInt8;
  ByteScaling scaling = ByteScaling::kChannel;
  int64_t n = 0;
  int64_t k = 0;
  const std::byte* data = nullptr;    // [n, k]
  const std::byte* scales = nullptr;  // ScaleShape, multiply codes
  DType scale_dtype = DType::kF32;    // kF32, kF16 or kBF16
};

// Codes and scales as they are. INVALID_ARGUMENT, with the tensor and the
// place, where a shape is empty, a code is NaN or a scale is negative or not
// finite.
absl::StatusOr<ByteWeight> ReadByteWeight(const ByteWeightView& view);

}  // namespace nibble::kernels
