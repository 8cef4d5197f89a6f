#include <array>
#include <bit>
#include <cstring>

#include "kernels/cuda/linear/pack_tile.h"
#include "kernels/little_endian.h"
#include "kernels/reference/half.h"

namespace nibble::kernels::cuda {
namespace {

// One scale or minimum of a tensor: 16 bits of its type.
struct Number {
  uint16_t bits = 0;
  DType dtype = DType::kF16;
};

void StoreHalf(uint16_t half, std::byte* out) {
  std::memcpy(out, &half, sizeof(half));
}

// `number` times 2^-exponent as FP16: exact, by the choice of the exponent.
uint16_t ScaledHalf(const Number& number, int exponent) {
  if (number.dtype == DType::kF16 && exponent == 0) return number.bits;
  const float value = number.dtype == DType::kBF16
                          ? reference::BFloat16ToFloat(number.bits)
                          : reference::HalfToFloat(number.bits);
  return reference::FloatToHalf(value * PowerOfTwo(-exponent));
}

std::array<uint16_t, 17> MakeSmallHalves() {
  std::array<uint16_t, 17> halves;
  for (int i = 0; i < 17; ++i) {
    halves[i] = reference::FloatToHalf(static_cast<float>(i));
  }
  return halves;
}

// The zero point of a row and group, 0 .. 16, as FP16.
uint16_t ZeroPoint(const WeightView& w, int64_t row, int64_t group) {
  static const std::array<uint16_t, 17> kHalves = MakeSmallHalves();
  const auto in_word = static_cast<int>(row % 8);
  const uint32_t word =
      Load32(w.zeros_or_mins + 4 * (group * (w.n / 8) + row / 8));
  if (w.format == QuantFormat::kAwq) {
    // Even rows are in nibbles 0 .. 3, odd rows in 4 .. 7.
    return kHalves[word >> (4 * (in_word / 2 + in_word % 2 * 4)) & 15];
  }
  const int less = w.gptq_zeros == GptqZeros::kLessOne ? 1 : 0;
  return kHalves[(word >> (4 * in_word) & 15) + less];
}

// Writes { s }, { s, m } or { s, z } of a row and group of the tensor.
void StoreHalves(const WeightView& w, int64_t row, int64_t group, int exponent,
                 std::byte* out) {
  const auto store = [&](const std::byte* at, DType dtype, int index) {
    StoreHalf(ScaledHalf({Load16(at), dtype}, exponent), out + 2 * index);
  };
  const int64_t by_row = row * w.Groups() + group;
  switch (w.format) {
    case QuantFormat::kQ4_0:
    case QuantFormat::kQ4_1: {
      const std::byte* block = w.Row(row) + group * Info(w.format).block_bytes;
      store(block, DType::kF16, 0);
      if (w.format == QuantFormat::kQ4_1) store(block + 2, DType::kF16, 1);
      return;
    }
    case QuantFormat::kAwq:
    case QuantFormat::kGptq:
      store(w.scales + 2 * (group * w.n + row), w.scale_dtype, 0);
      StoreHalf(ZeroPoint(w, row, group), out + 2);
      return;
    default:
      store(w.scales + 2 * by_row, w.scale_dtype, 0);
      if (w.format == QuantFormat::kInt4) {
        store(w.zeros_or_mins + 2 * by_row, w.scale_dtype, 1);
      }
  }
}

// The packed byte of an E4M3 scale (w4_layout.h), its sign left out.
std::byte E5m3Byte(std::byte e4m3) {
  const int bits = std::to_integer<int>(e4m3) & 0x7f;
  constexpr int kLeast = kE5m3Bias - kE5m3TensorLog2 - 9;  // exponent of 2^-9
  if (bits >= 8) {  // (8 + m) 2^(e - 10), e = bits / 8
    return static_cast<std::byte>(bits + (kLeast + 2) * 8);
  }
  if (bits == 0) return static_cast<std::byte>(kLeast * 8);
  const int exponent = std::bit_width(static_cast<unsigned>(bits)) - 1;
  return static_cast<std::byte>((kLeast + exponent) * 8 +
                                (bits << (3 - exponent) & 7));
}

std::byte PackedE8m0(std::byte e8m0) {
  constexpr auto kNan = std::byte{255};
  return e8m0 == kNan
             ? kNan
             : static_cast<std::byte>(std::to_integer<int>(e8m0) + kE8m0Shift);
}

// Writes what stands for the group that begins at `column`.
void StoreGroup(const WeightView& w, int64_t row, int64_t column,
                const BlockFormat& format, std::byte* out) {
  const int64_t group = column / w.Group();
  switch (format.layout.scale) {
    case W4Scale::kE8m0:
      *out = PackedE8m0(w.scales[row * w.Groups() + group]);
      return;
    case W4Scale::kE4m3:
      *out = E5m3Byte(w.scales[row * w.Groups() + group]);
      return;
    case W4Scale::kQ4K:
      std::memcpy(out,
                  w.Row(row) + column / kBlockK * Info(w.format).block_bytes,
                  kQ4KBytes);
      return;
    default:
      StoreHalves(w, row, group, format.scale_exponent, out);
  }
}

}  // namespace

void PackScales(std::span<const TileRun> runs, const BlockFormat& format,
                int64_t block, std::byte* out) {
  // The 16 bytes of a Q4_K super-block stand for all its groups.
  const bool super = format.layout.scale == W4Scale::kQ4K;
  const int group = super ? kBlockK : format.layout.group;
  for (const TileRun& run : runs) {
    for (int i = 0; i < kBlockK / group; ++i) {
      const int64_t column = block * kBlockK + i * group;
      if (column >= run.weight->k) break;
      for (int r = 0; r < run.count; ++r) {
        StoreGroup(*run.weight, run.row + r, column, format,
                   out + format.layout.ScaleAt(run.first + r, i));
      }
    }
  }
}

}  // namespace nibble::kernels::cuda
