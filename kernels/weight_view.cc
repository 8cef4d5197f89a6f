#include "kernels/weight_view.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/little_endian.h"
#include "kernels/reference/half.h"

namespace nibble::kernels {
namespace {

// Columns are counted in int32 by act-order and by the device.
constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();

constexpr std::array<int64_t, 4> kGroups = {32, 64, 128, 256};

bool IsCommonGroup(int64_t group) {
  for (const int64_t common : kGroups) {
    if (group == common) return true;
  }
  return false;
}

template <typename... Args>
absl::Status Refuse(const WeightView& weight, const Args&... why) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor '", std::string(weight.name), "' (",
                   std::string(Name(weight.format)), "): ", why...));
}

absl::Status CheckMultiple(const WeightView& weight, const char* size,
                           int64_t value, int64_t multiple, const char* why) {
  if (value % multiple == 0) return absl::OkStatus();
  return Refuse(weight, size, " = ", value, " is no multiple of ", multiple,
                ", ", why);
}

absl::Status CheckGroup(const WeightView& weight) {
  const int fixed = Info(weight.format).group_elements;
  const int64_t group = weight.group_elements;
  if (fixed != 0) {
    if (group == 0 || group == fixed) return absl::OkStatus();
    return Refuse(weight, "a group of ", group,
                  " weights, but the format's has ", fixed);
  }
  if (!IsCommonGroup(group) && group != weight.k) {
    return Refuse(weight, "a group of ", group,
                  " weights, expected 32, 64, 128, 256 or k = ", weight.k);
  }
  if (weight.scale_dtype != DType::kF16 && weight.scale_dtype != DType::kBF16) {
    return Refuse(weight, "scales of type ",
                  static_cast<int>(weight.scale_dtype),
                  ", expected FP16 or BF16");
  }
  return absl::OkStatus();
}

absl::Status CheckPacking(const WeightView& weight) {
  switch (weight.format) {
    case QuantFormat::kAwq:
      NIBBLE_RETURN_IF_ERROR(
          CheckMultiple(weight, "n", weight.n, 8, "the codes of an int32"));
      return CheckMultiple(weight, "k", weight.k, weight.Group(),
                           "the weights of a group");
    case QuantFormat::kGptq:
      NIBBLE_RETURN_IF_ERROR(CheckMultiple(weight, "n", weight.n, 8,
                                           "the zero points of an int32"));
      return CheckMultiple(weight, "k", weight.k, 8, "the codes of an int32");
    case QuantFormat::kMxfp4:
    case QuantFormat::kNvfp4:
      return CheckMultiple(weight, "k", weight.k, weight.Group(),
                           "the weights of a group");
    default:
      return CheckMultiple(weight, "k", weight.k, 2, "the codes of a byte");
  }
}

absl::Status CheckGroupIndices(const WeightView& weight) {
  if (weight.g_idx == nullptr) return absl::OkStatus();
  if (weight.format != QuantFormat::kGptq) {
    return Refuse(weight, "has a g_idx, which only gptq knows");
  }
  for (int64_t j = 0; j < weight.k; ++j) {
    const auto group = static_cast<int32_t>(Load32(weight.g_idx + 4 * j));
    if (group < 0 || group >= weight.Groups()) {
      return Refuse(weight, "g_idx[", j, "] = ", group, " is not in [0, ",
                    weight.Groups(), ")");
    }
  }
  return absl::OkStatus();
}

// `array` holds FP16 or BF16 numbers [rows, cols].
absl::Status CheckFinite(const WeightView& weight, const std::byte* array,
                         const char* what) {
  const bool by_group =
      weight.format == QuantFormat::kAwq || weight.format == QuantFormat::kGptq;
  const int64_t cols = by_group ? weight.n : weight.Groups();
  const int64_t count = weight.n * weight.Groups();
  const uint16_t infinity = weight.scale_dtype == DType::kF16 ? 0x7c00 : 0x7f80;
  for (int64_t i = 0; i < count; ++i) {
    if ((Load16(array + 2 * i) & infinity) == infinity) {
      return Refuse(weight, what, "[", i / cols, ", ", i % cols,
                    "] is infinite or not a number");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckE4m3Scales(const WeightView& weight) {
  constexpr uint8_t kNan = 0x7f;  // with either sign
  const int64_t count = weight.n * weight.Groups();
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t scale = Load8(weight.scales + i);
    if ((scale & kNan) == kNan) {
      return Refuse(weight, "scale[", i / weight.Groups(), ", ",
                    i % weight.Groups(), "] = ", static_cast<int>(scale),
                    " is E4M3's NaN");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckScales(const WeightView& weight) {
  if (weight.scales == nullptr) return Refuse(weight, "has no scales");
  const OffsetType offset = Info(weight.format).offset;
  if (offset == OffsetType::kMinimum || offset == OffsetType::kZeroPoint) {
    if (weight.zeros_or_mins == nullptr) {
      return Refuse(weight, "has no zero points or minimums");
    }
  }
  switch (weight.format) {
    case QuantFormat::kMxfp4:
      return absl::OkStatus();  // every byte is an E8M0 number
    case QuantFormat::kNvfp4:
      return CheckE4m3Scales(weight);
    case QuantFormat::kInt4:
      NIBBLE_RETURN_IF_ERROR(
          CheckFinite(weight, weight.zeros_or_mins, "minimum"));
      [[fallthrough]];
    default:
      return CheckFinite(weight, weight.scales, "scale");
  }
}

// Byte offsets of the FP16 scales and minimums of a block.
std::span<const int> BlockScaleOffsets(QuantFormat format) {
  static constexpr std::array kFirst = {0};
  static constexpr std::array kFirstTwo = {0, 2};
  static constexpr std::array kLast = {208};
  switch (format) {
    case QuantFormat::kQ4_0:
    case QuantFormat::kQ5_0:
    case QuantFormat::kQ8_0:
      return kFirst;
    case QuantFormat::kQ4_1:
    case QuantFormat::kQ5_1:
    case QuantFormat::kQ4_K:
    case QuantFormat::kQ5_K:
      return kFirstTwo;
    case QuantFormat::kQ6_K:
      return kLast;
    default:
      return {};
  }
}

absl::Status CheckBlocks(const WeightView& weight) {
  const FormatInfo& info = Info(weight.format);
  NIBBLE_RETURN_IF_ERROR(CheckMultiple(
      weight, "k", weight.k, info.block_elements, "the weights of a block"));
  const std::span<const int> offsets = BlockScaleOffsets(weight.format);
  if (offsets.empty()) return absl::OkStatus();
  const int64_t blocks = weight.k / info.block_elements;
  for (int64_t i = 0; i < weight.n * blocks; ++i) {
    for (const int offset : offsets) {
      const uint16_t half = Load16(weight.data + i * info.block_bytes + offset);
      if ((half & 0x7c00) == 0x7c00) {
        return Refuse(weight, "row ", i / blocks, ", block ", i % blocks,
                      ": scale ", reference::HalfToFloat(half),
                      " is not finite");
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckWeight(const WeightView& weight) {
  if (weight.n < 1 || weight.k < 1 || weight.n > kMaxSize ||
      weight.k > kMaxSize) {
    return Refuse(weight, "shape [", weight.n, ", ", weight.k,
                  "] has a size outside [1, ", kMaxSize, "]");
  }
  if (weight.data == nullptr) return Refuse(weight, "has no data");
  if (weight.format != QuantFormat::kNvfp4 && weight.tensor_scale != 1.0f) {
    return Refuse(weight, "a tensor scale of ", weight.tensor_scale,
                  ", which only nvfp4 knows");
  }
  if (!std::isfinite(weight.tensor_scale)) {
    return Refuse(weight, "its tensor scale ", weight.tensor_scale,
                  " is not finite");
  }
  if (IsBlockFormat(weight.format)) return CheckBlocks(weight);
  NIBBLE_RETURN_IF_ERROR(CheckGroup(weight));
  NIBBLE_RETURN_IF_ERROR(CheckPacking(weight));
  NIBBLE_RETURN_IF_ERROR(CheckGroupIndices(weight));
  return CheckScales(weight);
}

std::string DisplayName(const WeightView& weight) {
  const FormatInfo& info = Info(weight.format);
  std::string name(info.name);
  if (info.group_elements != 0) return name;
  if (!IsCommonGroup(weight.group_elements)) return absl::StrCat(name, "-pc");
  return absl::StrCat(name, "-g", weight.group_elements);
}

}  // namespace nibble::kernels
