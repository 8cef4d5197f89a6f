// Block layouts: kernels/reference/dequant.cc.
#include "tests/support/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "kernels/reference/dequant.h"
#include "kernels/reference/half.h"

namespace nibble::test {
namespace {

using kernels::Info;
using kernels::QuantFormat;
using kernels::reference::FloatToBFloat16;
using kernels::reference::FloatToHalf;
using kernels::reference::HalfToFloat;

void Store16(uint16_t bits, std::byte* out) {
  std::memcpy(out, &bits, sizeof(bits));
}

// Stores the nearest half and returns its value.
float StoreHalf(float value, std::byte* out) {
  const uint16_t half = FloatToHalf(value);
  Store16(half, out);
  return HalfToFloat(half);
}

// Stores the least half >= value >= 0 and returns its value.
float StoreHalfUp(float value, std::byte* out) {
  uint16_t half = FloatToHalf(value);
  if (HalfToFloat(half) < value) ++half;
  Store16(half, out);
  return HalfToFloat(half);
}

int Code(float value, float scale, int low, int high) {
  if (scale == 0) return std::clamp(0, low, high);
  const float code = std::round(value / scale);
  return static_cast<int>(
      std::clamp(code, static_cast<float>(low), static_cast<float>(high)));
}

// How many steps of `scale` reach `value`, at most `greatest`.
int Steps(float value, float scale, int greatest) {
  if (scale == 0) return 0;
  return std::min(greatest, static_cast<int>(std::ceil(value / scale)));
}

float GreatestMagnitude(std::span<const float> x) {
  float greatest = 0;
  for (const float value : x) greatest = std::max(greatest, std::fabs(value));
  return greatest;
}

void OrByte(std::byte* at, int bits) { *at |= static_cast<std::byte>(bits); }

// Codes of a 32-weight block: 4 bits each in qs, the fifth in qh (if any).
void StoreSmallCodes(std::span<const int> codes, std::byte* qh, std::byte* qs) {
  for (int j = 0; j < 32; ++j) {
    OrByte(qs + j % 16, j < 16 ? codes[j] & 15 : (codes[j] & 15) << 4);
    if (qh != nullptr) OrByte(qh + j / 8, (codes[j] >> 4) << (j % 8));
  }
}

// Q4_0, Q5_0: a code in the middle stands for 0, the outermost negative one
// for the weight of the greatest magnitude.
void QuantizeCentred(std::span<const float> x, int bits, std::byte* out) {
  const auto greatest = *std::max_element(
      x.begin(), x.end(),
      [](float a, float b) { return std::fabs(a) < std::fabs(b); });
  const int half = 1 << (bits - 1);
  const float d = StoreHalf(greatest / static_cast<float>(-half), out);
  std::array<int, 32> codes;
  for (int j = 0; j < 32; ++j) {
    codes[j] = Code(x[j], d, -half, half - 1) + half;
  }
  StoreSmallCodes(codes, bits == 5 ? out + 2 : nullptr,
                  out + (bits == 5 ? 6 : 2));
}

// Q4_1, Q5_1: codes count from the least weight.
void QuantizeFromMinimum(std::span<const float> x, int bits, std::byte* out) {
  const auto [least, greatest] = std::minmax_element(x.begin(), x.end());
  const int top = (1 << bits) - 1;
  const float d =
      StoreHalf((*greatest - *least) / static_cast<float>(top), out);
  const float m = StoreHalf(*least, out + 2);
  std::array<int, 32> codes;
  for (int j = 0; j < 32; ++j) codes[j] = Code(x[j] - m, d, 0, top);
  StoreSmallCodes(codes, bits == 5 ? out + 4 : nullptr,
                  out + (bits == 5 ? 8 : 4));
}

void QuantizeQ8_0(std::span<const float> x, std::byte* out) {
  const float d = StoreHalf(GreatestMagnitude(x) / 127, out);
  for (int j = 0; j < 32; ++j) {
    out[2 + j] = static_cast<std::byte>(Code(x[j], d, -127, 127));
  }
}

void StoreGroupScale(int group, int scale, int minimum, std::byte* packed) {
  if (group < 4) {
    OrByte(packed + group, scale);
    OrByte(packed + group + 4, minimum);
    return;
  }
  OrByte(packed + group + 4, (scale & 15) | (minimum & 15) << 4);
  OrByte(packed + group - 4, (scale >> 4) << 6);
  OrByte(packed + group, (minimum >> 4) << 6);
}

// Q4_K, Q5_K: value = scale * code - minimum, both rounded up to steps of the
// block's, so that every group's range is covered.
void QuantizeMinimumK(std::span<const float> x, int bits, std::byte* out) {
  const int top = (1 << bits) - 1;
  std::byte* qh = bits == 5 ? out + 16 : nullptr;
  std::byte* qs = out + (bits == 5 ? 48 : 16);
  std::array<float, 8> minimums;
  for (int g = 0; g < 8; ++g) {
    const auto group = x.subspan(g * 32, 32);
    minimums[g] =
        -std::min(0.0f, *std::min_element(group.begin(), group.end()));
  }
  const float dmin = StoreHalfUp(
      *std::max_element(minimums.begin(), minimums.end()) / 63, out + 2);
  std::array<int, 8> minimum_steps;
  std::array<float, 8> scales;
  for (int g = 0; g < 8; ++g) {
    const auto group = x.subspan(g * 32, 32);
    minimum_steps[g] = Steps(minimums[g], dmin, 63);
    const float greatest = *std::max_element(group.begin(), group.end());
    scales[g] =
        std::max(0.0f, greatest + dmin * static_cast<float>(minimum_steps[g])) /
        static_cast<float>(top);
  }
  const float d =
      StoreHalfUp(*std::max_element(scales.begin(), scales.end()) / 63, out);
  for (int g = 0; g < 8; ++g) {
    const int steps = Steps(scales[g], d, 63);
    StoreGroupScale(g, steps, minimum_steps[g], out + 4);
    const float minimum = dmin * static_cast<float>(minimum_steps[g]);
    for (int i = 0; i < 32; ++i) {
      const int code =
          Code(x[g * 32 + i] + minimum, d * static_cast<float>(steps), 0, top);
      OrByte(qs + g / 2 * 32 + i, (code & 15) << (g % 2 * 4));
      if (qh != nullptr) OrByte(qh + i, (code >> 4) << g);
    }
  }
}

void QuantizeQ6_K(std::span<const float> x, std::byte* out) {
  std::array<float, 16> scales;
  for (int g = 0; g < 16; ++g) {
    scales[g] = GreatestMagnitude(x.subspan(g * 16, 16)) / 31;
  }
  const float d = StoreHalfUp(
      *std::max_element(scales.begin(), scales.end()) / 127, out + 208);
  for (int j = 0; j < 256; ++j) {
    const int steps = Steps(scales[j / 16], d, 127);
    out[192 + j / 16] = static_cast<std::byte>(steps);
    const int code = Code(x[j], d * static_cast<float>(steps), -32, 31) + 32;
    const int half = j / 128;
    const int within = j % 128;
    OrByte(out + half * 64 + within % 64, (code & 15) << (within < 64 ? 0 : 4));
    OrByte(out + 128 + half * 32 + within % 32, (code >> 4)
                                                    << (within / 32 * 2));
  }
}

void QuantizeBlock(QuantFormat format, std::span<const float> x,
                   std::byte* out) {
  switch (format) {
    case QuantFormat::kF32:
      std::memcpy(out, x.data(), sizeof(float));
      return;
    case QuantFormat::kF16:
      Store16(FloatToHalf(x[0]), out);
      return;
    case QuantFormat::kBF16:
      Store16(FloatToBFloat16(x[0]), out);
      return;
    case QuantFormat::kQ4_0:
      return QuantizeCentred(x, 4, out);
    case QuantFormat::kQ4_1:
      return QuantizeFromMinimum(x, 4, out);
    case QuantFormat::kQ5_0:
      return QuantizeCentred(x, 5, out);
    case QuantFormat::kQ5_1:
      return QuantizeFromMinimum(x, 5, out);
    case QuantFormat::kQ8_0:
      return QuantizeQ8_0(x, out);
    case QuantFormat::kQ4_K:
      return QuantizeMinimumK(x, 4, out);
    case QuantFormat::kQ5_K:
      return QuantizeMinimumK(x, 5, out);
    case QuantFormat::kQ6_K:
      return QuantizeQ6_K(x, out);
    case QuantFormat::kInt4:
    case QuantFormat::kInt4Sym:
    case QuantFormat::kAwq:
    case QuantFormat::kGptq:
    case QuantFormat::kMxfp4:
    case QuantFormat::kNvfp4:
      NIBBLE_CHECK(false);
  }
}

// Byte offsets of the FP16 scales of a block.
std::vector<int> HalfOffsets(QuantFormat format) {
  switch (format) {
    case QuantFormat::kF32:
    case QuantFormat::kBF16:
    case QuantFormat::kInt4:
    case QuantFormat::kInt4Sym:
    case QuantFormat::kAwq:
    case QuantFormat::kGptq:
    case QuantFormat::kMxfp4:
    case QuantFormat::kNvfp4:
      return {};
    case QuantFormat::kF16:
    case QuantFormat::kQ4_0:
    case QuantFormat::kQ5_0:
    case QuantFormat::kQ8_0:
      return {0};
    case QuantFormat::kQ4_1:
    case QuantFormat::kQ5_1:
    case QuantFormat::kQ4_K:
    case QuantFormat::kQ5_K:
      return {0, 2};
    case QuantFormat::kQ6_K:
      return {208};
  }
  return {};
}

uint16_t RandomHalf(Random& random) {
  const auto sign = static_cast<uint16_t>(random.Bits() & 0x8000);
  switch (random.Int(0, 9)) {
    case 0:
      return sign;  // +-0
    case 1:
      return sign | static_cast<uint16_t>(random.Int(1, 0x3ff));
    default:  // 2^-9 to 2
      return sign | static_cast<uint16_t>(random.Int(0x1800, 0x3fff));
  }
}

}  // namespace

void QuantizeRow(QuantFormat format, std::span<const float> x, std::byte* out) {
  const size_t block = Info(format).block_elements;
  NIBBLE_CHECK_EQ(x.size() % block, 0u);
  std::memset(out, 0, RowBytes(format, static_cast<int64_t>(x.size())));
  for (size_t begin = 0; begin < x.size(); begin += block) {
    QuantizeBlock(format, x.subspan(begin, block), out);
    out += Info(format).block_bytes;
  }
}

double QuantizationBound(QuantFormat format) {
  // A scale or minimum stored as FP16 is off by 2^-11 of itself; that counts
  // for every step to the farthest code, so at most twice the range.
  constexpr double kHalf = 4 * 0x1p-11;
  // Scales and minimums of the K formats are rounded up to one of 63 (127)
  // steps.
  constexpr double kSteps63 = 1 + 1.0 / 63;
  switch (format) {
    case QuantFormat::kF32:
      return 0;
    case QuantFormat::kF16:
      return 0x1p-11;
    case QuantFormat::kBF16:
      return 0x1p-8;
    case QuantFormat::kQ4_0:  // the positive end is one code short
      return 1.0 / 8 + kHalf;
    case QuantFormat::kQ4_1:
      return 1.0 / 15 + kHalf;
    case QuantFormat::kQ5_0:
      return 1.0 / 16 + kHalf;
    case QuantFormat::kQ5_1:
      return 1.0 / 31 + kHalf;
    case QuantFormat::kQ8_0:
      return 0.5 / 127 + kHalf;
    case QuantFormat::kQ4_K:
      return kSteps63 * kSteps63 / 15 + kHalf;
    case QuantFormat::kQ5_K:
      return kSteps63 * kSteps63 / 31 + kHalf;
    case QuantFormat::kQ6_K:
      return 0.5 / 31 * (1 + 1.0 / 127) + kHalf;
    case QuantFormat::kInt4:
    case QuantFormat::kInt4Sym:
    case QuantFormat::kAwq:
    case QuantFormat::kGptq:
    case QuantFormat::kMxfp4:
    case QuantFormat::kNvfp4:
      NIBBLE_CHECK(false);
  }
  return 0;
}

TestWeight::TestWeight(QuantFormat format, int64_t n, int64_t k,
                       std::span<const float> x)
    : format_(format),
      n_(n),
      k_(k),
      name_("test." + std::string(kernels::Name(format))),
      bytes_(static_cast<size_t>(n * RowBytes(format, k))) {
  NIBBLE_CHECK_EQ(static_cast<int64_t>(x.size()), n * k);
  for (int64_t row = 0; row < n; ++row) {
    QuantizeRow(format, x.subspan(row * k, k),
                bytes_.data() + row * RowBytes(format, k));
  }
}

kernels::WeightView TestWeight::View() const {
  return {.name = name_,
          .format = format_,
          .n = n_,
          .k = k_,
          .data = bytes_.data() + shift_bytes_};
}

std::vector<float> TestWeight::Dequantized() const {
  std::vector<float> out(static_cast<size_t>(n_ * k_));
  for (int64_t row = 0; row < n_; ++row) {
    kernels::reference::DequantizeRow(format_, View().Row(row), k_,
                                      out.data() + row * k_);
  }
  return out;
}

void TestWeight::Misalign(int64_t shift_bytes) {
  bytes_.erase(bytes_.begin(), bytes_.begin() + shift_bytes_);
  bytes_.insert(bytes_.begin(), static_cast<size_t>(shift_bytes), std::byte{0});
  shift_bytes_ = shift_bytes;
}

TestWeight RandomWeight(QuantFormat format, int64_t n, int64_t k,
                        Random& random) {
  const float deviation = 1.0f / std::sqrt(static_cast<float>(k));
  return {format, n, k, random.Normals(n * k, deviation)};
}

std::vector<std::byte> RandomBlocks(QuantFormat format, int64_t n, int64_t k,
                                    Random& random) {
  const int64_t bytes = n * RowBytes(format, k);
  if (format == QuantFormat::kF32 || format == QuantFormat::kBF16) {
    const std::vector<float> values = random.Normals(n * k);
    std::vector<std::byte> blocks(static_cast<size_t>(bytes));
    QuantizeRow(format, values, blocks.data());
    return blocks;
  }
  std::vector<std::byte> blocks = random.Bytes(bytes);
  const int block_bytes = Info(format).block_bytes;
  for (int64_t block = 0; block < bytes; block += block_bytes) {
    for (const int offset : HalfOffsets(format)) {
      Store16(RandomHalf(random), blocks.data() + block + offset);
    }
  }
  return blocks;
}

}  // namespace nibble::test
