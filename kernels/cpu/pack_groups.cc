// Weights whose codes, scales and offsets are arrays of their own. Layouts:
// kernels/weight_view.h.
#include <algorithm>
#include <array>

#include "kernels/cpu/pack.h"
#include "kernels/cpu/pack_codes.h"
#include "kernels/little_endian.h"

namespace nibble::kernels::cpu {
namespace {

uint8_t Nibble(const std::byte* words, int64_t word, int64_t nibble) {
  return static_cast<uint8_t>(Load32(words + 4 * word) >> (4 * nibble) & 15);
}

// Which nibble of AWQ's int32 holds row r of its eight.
constexpr std::array<int, 8> kAwqNibble = {0, 4, 1, 5, 2, 6, 3, 7};

// One panel of one matrix. A local of PackGroupPanel.
class GroupPanel final {
 public:
  GroupPanel(const WeightView& weight, std::span<const int32_t> order,
             int64_t panel, const PackedFormat& packed)
      : weight_(weight),
        order_(order),
        begin_(panel * kPanelRows),
        rows_(
            static_cast<int>(std::min<int64_t>(kPanelRows, weight.n - begin_))),
        packed_(packed),
        by_group_(weight.format == QuantFormat::kAwq ||
                  weight.format == QuantFormat::kGptq) {}

  // Block after block, so that the arrays of AWQ and GPTQ, which keep rows
  // side by side, are read once.
  void Write(std::byte* out) const {
    const int64_t header_blocks = HeaderBlocks(weight_);
    const int64_t blocks = weight_.k / kBlockWeights;
    for (int64_t b = 0; b < blocks; ++b) {
      if (b % header_blocks == 0) {
        WriteHeader(b / header_blocks, out);
        out += packed_.HeaderBytes();
      }
      uint8_t codes[kBlockWeights];
      for (int row = 0; row < rows_; ++row) {
        for (int i = 0; i < kBlockWeights; ++i) {
          codes[i] = CodeAt(begin_ + row, Column(b * kBlockWeights + i));
        }
        PutCodes(codes, packed_.code_bits, row, out);
      }
      out += packed_.BlockBytes();
    }
  }

 private:
  int64_t Column(int64_t c) const { return order_.empty() ? c : order_[c]; }

  uint8_t CodeAt(int64_t row, int64_t column) const {
    switch (weight_.format) {
      case QuantFormat::kAwq:
        return Nibble(weight_.data, column * (weight_.n / 8) + row / 8,
                      kAwqNibble[row % 8]);
      case QuantFormat::kGptq:
        return Nibble(weight_.data, column / 8 * weight_.n + row, column % 8);
      default: {
        const uint8_t byte =
            Load8(weight_.data + row * (weight_.k / 2) + column / 2);
        return column % 2 == 0 ? byte & 15 : byte >> 4;
      }
    }
  }

  uint8_t ZeroPoint(int64_t row, int64_t group) const {
    const int64_t word = group * (weight_.n / 8) + row / 8;
    if (weight_.format == QuantFormat::kAwq) {
      return Nibble(weight_.zeros_or_mins, word, kAwqNibble[row % 8]);
    }
    const bool less_one = weight_.gptq_zeros == GptqZeros::kLessOne;
    return Nibble(weight_.zeros_or_mins, word, row % 8) + (less_one ? 1 : 0);
  }

  void WriteHeader(int64_t group, std::byte* out) const {
    std::byte* second = out + 2 * kPanelRows;
    for (int i = 0; i < rows_; ++i) {
      const int64_t row = begin_ + i;
      const int64_t at =
          by_group_ ? group * weight_.n + row : row * weight_.Groups() + group;
      Put16(Load16(weight_.scales + 2 * at), i, out);
      if (packed_.scaling == Scaling::kGroupMin) {
        Put16(Load16(weight_.zeros_or_mins + 2 * at), i, second);
      } else if (packed_.scaling == Scaling::kGroupZero) {
        second[i] = std::byte{ZeroPoint(row, group)};
      }
    }
  }

  const WeightView& weight_;
  std::span<const int32_t> order_;
  int64_t begin_;
  int rows_;
  const PackedFormat& packed_;
  bool by_group_;  // scales are [G, n]
};

}  // namespace

void PackGroupPanel(const WeightView& weight, std::span<const int32_t> order,
                    int64_t panel, const PackedFormat& packed, std::byte* out) {
  GroupPanel(weight, order, panel, packed).Write(out);
}

}  // namespace nibble::kernels::cpu
