#include "tests/support/quantize_groups.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "kernels/little_endian.h"
#include "kernels/reference/dequant.h"
#include "kernels/reference/half.h"
#include "kernels/reference/minifloat.h"
#include "tests/support/minifloat.h"

namespace nibble::test {
namespace {

using kernels::DType;
using kernels::GptqZeros;
using kernels::QuantFormat;
using kernels::WeightView;

constexpr std::array<int, 8> kAwqOrder = {0, 2, 4, 6, 1, 3, 5, 7};

bool IsInterleaved(QuantFormat format) {
  return format == QuantFormat::kAwq || format == QuantFormat::kGptq;
}

// Nibble of AWQ's int32 that is row r of its eight.
int AwqNibble(int64_t r) {
  return static_cast<int>(std::find(kAwqOrder.begin(), kAwqOrder.end(), r) -
                          kAwqOrder.begin());
}

void OrNibble(std::vector<std::byte>& bytes, int64_t nibble, int value) {
  bytes[nibble / 2] |= static_cast<std::byte>(value << (nibble % 2 * 4));
}

// Zeroed arrays of the right sizes, and the groups of the columns.
GroupWeight Empty(const GroupSpec& spec, Random& random) {
  GroupWeight w;
  w.spec = spec;
  w.data.resize(spec.n * spec.k / 2);
  const WeightView view = w.View();
  w.name = "test." + kernels::DisplayName(view);
  const int64_t count = spec.n * view.Groups();
  const bool byte_scales =
      spec.format == QuantFormat::kMxfp4 || spec.format == QuantFormat::kNvfp4;
  w.scales.resize(byte_scales ? count : 2 * count);
  if (spec.format == QuantFormat::kInt4) w.zeros_or_mins.resize(2 * count);
  if (IsInterleaved(spec.format)) w.zeros_or_mins.resize(count / 2);
  if (spec.act_order) {
    for (int64_t j = 0; j < spec.k; ++j) {
      w.g_idx.push_back(static_cast<int32_t>(j / view.Group()));
    }
    for (int64_t j = spec.k - 1; j > 0; --j) {
      std::swap(w.g_idx[j], w.g_idx[random.Int(0, j)]);
    }
  }
  return w;
}

int64_t GroupOf(const GroupWeight& w, int64_t j) {
  return w.g_idx.empty() ? j / w.View().Group() : w.g_idx[j];
}

void SetCode(GroupWeight& w, int64_t row, int64_t j, int code) {
  const int64_t n = w.spec.n;
  switch (w.spec.format) {
    case QuantFormat::kAwq:
      return OrNibble(w.data, j * n + row / 8 * 8 + AwqNibble(row % 8), code);
    case QuantFormat::kGptq:
      return OrNibble(w.data, (j / 8 * n + row) * 8 + j % 8, code);
    default:
      return OrNibble(w.data, row * w.spec.k + j, code);
  }
}

void SetZero(GroupWeight& w, int64_t row, int64_t group, int zero) {
  const int64_t word = group * (w.spec.n / 8) + row / 8;
  if (w.spec.format == QuantFormat::kAwq) {
    return OrNibble(w.zeros_or_mins, 8 * word + AwqNibble(row % 8), zero);
  }
  const int less = w.spec.gptq_zeros == GptqZeros::kLessOne ? 1 : 0;
  OrNibble(w.zeros_or_mins, 8 * word + row % 8, zero - less);
}

int64_t ScaleIndex(const GroupWeight& w, int64_t row, int64_t group) {
  return IsInterleaved(w.spec.format) ? group * w.spec.n + row
                                      : row * w.View().Groups() + group;
}

// Stores `value` rounded to FP16 or BF16 and returns what was stored.
float Store16(DType dtype, float value, std::vector<std::byte>& array,
              int64_t index) {
  const bool bf16 = dtype == DType::kBF16;
  const uint16_t bits = bf16 ? kernels::reference::FloatToBFloat16(value)
                             : kernels::reference::FloatToHalf(value);
  std::memcpy(array.data() + 2 * index, &bits, sizeof(bits));
  return bf16 ? kernels::reference::BFloat16ToFloat(bits)
              : kernels::reference::HalfToFloat(bits);
}

float Quotient(float value, float scale) {
  return scale == 0 ? 0 : std::round(value / scale);
}

int Clamped(float code, int low, int high) {
  return static_cast<int>(
      std::clamp(code, static_cast<float>(low), static_cast<float>(high)));
}

// The weights of one row that share a scale.
struct Group {
  int64_t row = 0;
  int64_t group = 0;
  std::vector<int64_t> columns;
  std::vector<float> x;
  float least = std::numeric_limits<float>::infinity();
  float greatest = -std::numeric_limits<float>::infinity();

  float Magnitude() const { return std::max(-least, greatest); }
};

template <typename Code>
void SetCodes(GroupWeight& w, const Group& group, Code code) {
  for (size_t i = 0; i < group.x.size(); ++i) {
    SetCode(w, group.row, group.columns[i], code(group.x[i]));
  }
}

void QuantizeInteger(const Group& group, GroupWeight& w) {
  const int64_t index = ScaleIndex(w, group.row, group.group);
  const auto store = [&w, index](float value) {
    return Store16(w.spec.scale_dtype, value, w.scales, index);
  };
  if (w.spec.format == QuantFormat::kInt4Sym) {
    const float scale = store(group.Magnitude() / 7);
    return SetCodes(w, group, [scale](float x) {
      return Clamped(Quotient(x, scale) + 8, 0, 15);
    });
  }
  if (w.spec.format == QuantFormat::kInt4) {
    const float scale = store((group.greatest - group.least) / 15);
    const float minimum =
        Store16(w.spec.scale_dtype, group.least, w.zeros_or_mins, index);
    return SetCodes(w, group, [scale, minimum](float x) {
      return Clamped(Quotient(x - minimum, scale), 0, 15);
    });
  }
  const float least = std::min(group.least, 0.0f);
  const float scale = store((std::max(group.greatest, 0.0f) - least) / 15);
  const bool less_one = w.spec.format == QuantFormat::kGptq &&
                        w.spec.gptq_zeros == GptqZeros::kLessOne;
  const int zero = Clamped(-Quotient(least, scale), less_one ? 1 : 0, 15);
  SetZero(w, group.row, group.group, zero);
  SetCodes(w, group, [scale, zero](float x) {
    return Clamped(Quotient(x, scale) + static_cast<float>(zero), 0, 15);
  });
}

void QuantizeE2m1(const Group& group, GroupWeight& w) {
  const int64_t index = ScaleIndex(w, group.row, group.group);
  const float greatest = group.Magnitude();
  float scale;
  if (w.spec.format == QuantFormat::kMxfp4) {
    // Section 6.3; E2M1's greatest power of two is 2^2.
    const int exponent =
        greatest == 0 ? -127 : std::clamp(std::ilogb(greatest) - 2, -127, 127);
    w.scales[index] = static_cast<std::byte>(exponent + 127);
    scale = std::ldexp(1.0f, exponent);
  } else {
    const uint8_t bits = E4m3Bits(greatest / 6 / w.tensor_scale);
    w.scales[index] = static_cast<std::byte>(bits);
    scale = w.tensor_scale * kernels::reference::E4m3ToFloat(bits);
  }
  SetCodes(w, group,
           [scale](float x) { return scale == 0 ? 0 : E2m1Code(x / scale); });
}

void QuantizeMatrixRow(std::span<const float> x, int64_t row, GroupWeight& w) {
  std::vector<Group> groups(w.View().Groups());
  for (int64_t j = 0; j < w.spec.k; ++j) {
    const int64_t index = GroupOf(w, j);
    Group& group = groups[index];
    group.row = row;
    group.group = index;
    group.columns.push_back(j);
    group.x.push_back(x[j]);
    group.least = std::min(group.least, x[j]);
    group.greatest = std::max(group.greatest, x[j]);
  }
  const bool floats =
      kernels::Info(w.spec.format).code == kernels::CodeType::kE2m1;
  for (const Group& group : groups) {
    floats ? QuantizeE2m1(group, w) : QuantizeInteger(group, w);
  }
}

// Bits of a finite FP16 or BF16 number.
uint16_t RandomNumber(DType dtype, Random& random) {
  const auto sign = static_cast<uint16_t>(random.Bits() & 0x8000);
  const bool bf16 = dtype == DType::kBF16;
  switch (random.Int(0, 9)) {
    case 0:
      return sign;  // +-0
    case 1:         // an FP16 subnormal, or 2^-20
      return sign | static_cast<uint16_t>(bf16 ? 0x3580 : random.Int(1, 0x3ff));
    default:  // 2^-9 to 2
      return sign | static_cast<uint16_t>(bf16 ? random.Int(0x3b00, 0x3fff)
                                               : random.Int(0x1800, 0x3fff));
  }
}

void FillNumbers(DType dtype, Random& random, std::vector<std::byte>& array) {
  for (size_t i = 0; i + 1 < array.size(); i += 2) {
    const uint16_t bits = RandomNumber(dtype, random);
    std::memcpy(array.data() + i, &bits, sizeof(bits));
  }
}

}  // namespace

WeightView GroupWeight::View() const {
  WeightView view{.name = name,
                  .format = spec.format,
                  .n = spec.n,
                  .k = spec.k,
                  .data = data.data(),
                  .group_elements = spec.group,
                  .scales = scales.data(),
                  .scale_dtype = spec.scale_dtype,
                  .gptq_zeros = spec.gptq_zeros,
                  .tensor_scale = tensor_scale};
  if (!zeros_or_mins.empty()) view.zeros_or_mins = zeros_or_mins.data();
  if (!g_idx.empty()) {
    view.g_idx = reinterpret_cast<const std::byte*>(g_idx.data());
  }
  return view;
}

std::vector<float> GroupWeight::Dequantized() const {
  std::vector<float> out(static_cast<size_t>(spec.n * spec.k));
  for (int64_t row = 0; row < spec.n; ++row) {
    kernels::reference::DequantizeRow(View(), row, out.data() + row * spec.k);
  }
  return out;
}

GroupWeight RandomGroupWeight(const GroupSpec& spec, Random& random) {
  GroupWeight w = Empty(spec, random);
  w.data = random.Bytes(static_cast<int64_t>(w.data.size()));
  switch (spec.format) {
    case QuantFormat::kMxfp4:
      for (std::byte& scale : w.scales) {
        scale = static_cast<std::byte>(random.Int(117, 137));
      }
      return w;
    case QuantFormat::kNvfp4:
      w.tensor_scale = random.Uniform(0.001f, 0.002f);
      for (std::byte& scale : w.scales) {
        scale = static_cast<std::byte>(random.Int(0, 0x7e) |
                                       (random.Bits() & 0x80));
      }
      return w;
    case QuantFormat::kInt4:
      FillNumbers(spec.scale_dtype, random, w.zeros_or_mins);
      break;
    case QuantFormat::kAwq:
    case QuantFormat::kGptq:
      w.zeros_or_mins =
          random.Bytes(static_cast<int64_t>(w.zeros_or_mins.size()));
      break;
    default:
      break;
  }
  FillNumbers(spec.scale_dtype, random, w.scales);
  return w;
}

GroupWeight QuantizeGroups(const GroupSpec& spec, std::span<const float> x,
                           Random& random) {
  NIBBLE_CHECK_EQ(static_cast<int64_t>(x.size()), spec.n * spec.k);
  GroupWeight w = Empty(spec, random);
  if (spec.format == QuantFormat::kNvfp4) {
    float greatest = 0;
    for (const float value : x) {
      greatest = std::max(greatest, std::fabs(value));
    }
    if (greatest != 0) w.tensor_scale = greatest / (448 * 6);
  }
  for (int64_t row = 0; row < spec.n; ++row) {
    QuantizeMatrixRow(x.subspan(row * spec.k, spec.k), row, w);
  }
  return w;
}

}  // namespace nibble::test
