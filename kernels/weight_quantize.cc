#include "kernels/weight_quantize.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "kernels/activation_codes.h"
#include "kernels/little_endian.h"
#include "kernels/reference/dequant.h"
#include "kernels/reference/half.h"
#include "kernels/reference/minifloat.h"

namespace nibble::kernels {
namespace {

constexpr int64_t kTile = 128;

// Scales tried: the one that clips nothing, and down to 0.78 of it. Of n
// weights one of which is far from the rest, INT8's error is least where that
// one is clipped by about n / 193,548 of itself: 2% of a row of 4,096.
constexpr int kCandidates = 12;
constexpr float kCandidateStep = 0.02f;

float GreatestCode(ByteCode code) {
  return code == ByteCode::kInt8 ? 127.0f : 448.0f;
}

// The roundings below are written so that loops of them become vector code:
// no calls, no branches.

// To an integer in [-127, 127].
float RoundToInt8(float value) {
  // Adding it leaves no bits for a fraction.
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  const float clamped = std::min(std::max(value, -127.0f), 127.0f);
  return (clamped + kRound) - kRound;
}

// To a number of E4M3.
float RoundToE4m3(float value) {
  constexpr float kSubnormalRound = 24576.0f;    // its last bit: 2^-9
  constexpr uint32_t kLeastNormal = 0x3c800000;  // 2^-6
  constexpr uint32_t kDropped = (1u << 20) - 1;  // 20 of 23 bits
  const float clamped = std::min(std::max(value, -448.0f), 448.0f);
  const auto bits = std::bit_cast<uint32_t>(clamped);
  const uint32_t rounded =
      (bits + (kDropped >> 1) + (bits >> 20 & 1)) & ~kDropped;
  const auto subnormal =
      std::bit_cast<uint32_t>((clamped + kSubnormalRound) - kSubnormalRound);
  return std::bit_cast<float>((bits & 0x7fffffff) < kLeastNormal ? subnormal
                                                                 : rounded);
}

float Greatest(std::span<const float> w) {
  constexpr size_t kLanes = 16;
  std::array<float, kLanes> greatest{};
  size_t i = 0;
  for (; i + kLanes <= w.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      greatest[lane] = std::max(greatest[lane], std::fabs(w[i + lane]));
    }
  }
  for (; i < w.size(); ++i)
    greatest[0] = std::max(greatest[0], std::fabs(w[i]));
  return *std::ranges::max_element(greatest);
}

// Sum of (w - scale * round(w / scale))^2.
template <typename Round>
double SquaredError(std::span<const float> w, float scale, Round round) {
  constexpr size_t kLanes = 16;
  constexpr size_t kRun = 4096;  // added up in FP32
  const float inverse = 1 / scale;
  double sum = 0;
  for (size_t begin = 0; begin < w.size(); begin += kRun) {
    const auto run = w.subspan(begin, std::min(kRun, w.size() - begin));
    std::array<float, kLanes> sums{};
    size_t i = 0;
    for (; i + kLanes <= run.size(); i += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const float value = run[i + lane];
        const float error = value - scale * round(value * inverse);
        sums[lane] += error * error;
      }
    }
    for (; i < run.size(); ++i) {
      const float error = run[i] - scale * round(run[i] * inverse);
      sums[0] += error * error;
    }
    for (const float lane : sums) sum += static_cast<double>(lane);
  }
  return sum;
}

double SquaredError(std::span<const float> w, float scale, ByteCode code) {
  return code == ByteCode::kInt8 ? SquaredError(w, scale, RoundToInt8)
                                 : SquaredError(w, scale, RoundToE4m3);
}

float ChooseScale(std::span<const float> w,
                  const ByteQuantizeOptions& options) {
  const float least =
      std::max(Greatest(w), kLeastMax) / GreatestCode(options.code);
  if (!options.search) return least;
  float best = least;
  double least_error = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kCandidates; ++i) {
    const float scale = least * (1 - kCandidateStep * static_cast<float>(i));
    const double error = SquaredError(w, scale, options.code);
    if (error < least_error) {
      least_error = error;
      best = scale;
    }
  }
  return best;
}

void Encode(std::span<const float> w, float scale, ByteCode code,
            uint8_t* codes) {
  const float inverse = 1 / scale;
  if (code == ByteCode::kInt8) {
    for (size_t i = 0; i < w.size(); ++i) {
      codes[i] = static_cast<uint8_t>(
          static_cast<int8_t>(RoundToInt8(w[i] * inverse)));
    }
    return;
  }
  for (size_t i = 0; i < w.size(); ++i) {
    codes[i] = reference::FloatToE4m3(w[i] * inverse);
  }
}

absl::Status CheckFinite(std::span<const float> w, int64_t n, int64_t k) {
  for (int64_t row = 0; row < n; ++row) {
    for (const float value : w.subspan(row * k, k)) {
      if (!std::isfinite(value)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "cannot quantize weights: row ", row, " holds ", value));
      }
    }
  }
  return absl::OkStatus();
}

float ReadScale(const std::byte* scales, DType dtype, int64_t index) {
  const std::byte* at = scales + index * ElementBytes(dtype);
  if (dtype == DType::kF32) return std::bit_cast<float>(Load32(at));
  return dtype == DType::kF16 ? reference::HalfToFloat(Load16(at))
                              : reference::BFloat16ToFloat(Load16(at));
}

}  // namespace

ScaleShape ScaleShape::Of(ByteScaling scaling, int64_t n, int64_t k) {
  switch (scaling) {
    case ByteScaling::kTensor:
      return {1, 1, n, k};
    case ByteScaling::kChannel:
      return {n, 1, 1, k};
    case ByteScaling::kGroup:
      return {n, DivideUp(k, kTile), 1, kTile};
    case ByteScaling::kBlock:
      break;
  }
  return {DivideUp(n, kTile), DivideUp(k, kTile), kTile, kTile};
}

void ByteWeight::DequantizeRow(int64_t row, float* out) const {
  const ScaleShape shape = ScaleShape::Of(scaling, n, k);
  const float* row_scales = scales.data() + row / shape.tile_rows * shape.cols;
  for (int64_t i = 0; i < k; ++i) {
    const uint8_t bits = codes[row * k + i];
    const float number = code == ByteCode::kInt8
                             ? static_cast<float>(static_cast<int8_t>(bits))
                             : reference::E4m3ToFloat(bits);
    out[i] = number * row_scales[i / shape.tile_cols];
  }
}

absl::StatusOr<ByteWeight> QuantizeWeight(std::span<const float> w, int64_t n,
                                          int64_t k,
                                          const ByteQuantizeOptions& options) {
  const auto count = static_cast<int64_t>(w.size());
  if (n <= 0 || k <= 0 || count / k != n || count % k != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot quantize ", count, " weights as a matrix [", n, ", ", k, "]"));
  }
  if (absl::Status status = CheckFinite(w, n, k); !status.ok()) return status;
  ByteWeight result{options.code, options.scaling, n, k, {}, {}};
  result.codes.resize(w.size());
  const ScaleShape shape = ScaleShape::Of(options.scaling, n, k);
  std::vector<float> tile;
  for (int64_t row = 0; row < n; row += shape.tile_rows) {
    const int64_t rows = std::min(shape.tile_rows, n - row);
    for (int64_t col = 0; col < k; col += shape.tile_cols) {
      const int64_t cols = std::min(shape.tile_cols, k - col);
      // Whole rows stand together already.
      auto values = w.subspan(row * k + col, rows == 1 ? cols : rows * cols);
      if (rows > 1 && cols < k) {
        tile.clear();
        for (int64_t i = 0; i < rows; ++i) {
          const auto part = w.subspan((row + i) * k + col, cols);
          tile.insert(tile.end(), part.begin(), part.end());
        }
        values = tile;
      }
      const float scale = ChooseScale(values, options);
      result.scales.push_back(scale);
      for (int64_t i = 0; i < rows; ++i) {
        Encode(values.subspan(i * cols, cols), scale, options.code,
               result.codes.data() + (row + i) * k + col);
      }
    }
  }
  return result;
}

absl::StatusOr<ByteWeight> QuantizeWeight(const WeightView& weight,
                                          const ByteQuantizeOptions& options) {
  std::vector<float> w(static_cast<size_t>(weight.n * weight.k));
  for (int64_t row = 0; row < weight.n; ++row) {
    reference::DequantizeRow(weight, row, w.data() + row * weight.k);
  }
  absl::StatusOr<ByteWeight> result =
      QuantizeWeight(w, weight.n, weight.k, options);
  if (result.ok()) return result;
  return absl::Status(result.status().code(),
                      absl::StrCat(std::string(weight.name), ": ",
                                   std::string(result.status().message())));
}

absl::StatusOr<ByteWeight> ReadByteWeight(const ByteWeightView& view) {
  const std::string name(view.name);
  if (view.n <= 0 || view.k <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": a matrix [", view.n, ", ", view.k, "]"));
  }
  ByteWeight weight{view.code, view.scaling, view.n, view.k, {}, {}};
  weight.codes.resize(view.n * view.k);
  std::memcpy(weight.codes.data(), view.data, weight.codes.size());
  for (int64_t i = 0; i < view.n * view.k && view.code == ByteCode::kE4m3;
       ++i) {
    if ((weight.codes[i] & 0x7f) == 0x7f) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ": weight [", i / view.k, ", ", i % view.k, "] is E4M3's NaN"));
    }
  }
  const int64_t count = ScaleShape::Of(view.scaling, view.n, view.k).count();
  for (int64_t i = 0; i < count; ++i) {
    const float scale = ReadScale(view.scales, view.scale_dtype, i);
    if (!std::isfinite(scale) || scale < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": scale ", i, " is ", scale));
    }
    weight.scales.push_back(scale);
  }
  return weight;
}

}  // namespace nibble::kernels
