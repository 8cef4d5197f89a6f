// Packed W4A16 weights taken apart into codes, scales and minimums.
#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/check.h"
#include "kernels/cuda/linear/w4a8_pack.h"
#include "kernels/little_endian.h"
#include "kernels/reference/half.h"

namespace nibble::kernels::cuda {
namespace {

float Half(const std::byte* at) { return reference::HalfToFloat(Load16(at)); }

// The 6-bit scale and minimum of a group of Q4_K, {u8 scales[12]}: bytes 0..3
// hold the scales of groups 0..3, bytes 4..7 their minimums, both with two
// upper bits of groups 4..7 on top, whose lower four bits are in bytes 8..11.
struct SixBits {
  int scale;
  int minimum;
};
SixBits SixBitsOf(const std::byte* scales, int group) {
  const auto at = [scales](int i) {
    return static_cast<int>(Load8(scales + i));
  };
  if (group < 4) return {at(group) & 63, at(group + 4) & 63};
  return {(at(group + 4) & 15) | at(group - 4) >> 6 << 4,
          at(group + 4) >> 4 | at(group) >> 6 << 4};
}

class RowReader {
 public:
  RowReader(const PackedW4& packed, W4Numbers& numbers)
      : packed_(packed), layout_(packed.layout), numbers_(numbers) {}

  void Read(int64_t row) {
    const int64_t blocks = BlocksPerTile(packed_.k);
    const int r = static_cast<int>(row % kTileRows);
    for (int64_t b = 0; b < blocks; ++b) {
      const std::byte* const block =
          packed_.blocks.data() +
          (row / kTileRows * blocks + b) * layout_.BlockBytes();
      ReadCodes(block, row, r, b * kBlockK);
      ReadScales(block + kCodeBytes, row, r, b * kBlockK);
    }
  }

 private:
  void ReadCodes(const std::byte* block, int64_t row, int r, int64_t begin) {
    uint8_t* const codes = numbers_.codes.data() + row * packed_.k + begin;
    const auto count =
        static_cast<int>(std::min<int64_t>(kBlockK, packed_.k - begin));
    for (int k = 0; k < count; ++k) {
      const int step = k / kStepK, in_step = k % kStepK;
      const int lane = r % 8 * 4 + in_step % 8 / 2;
      const uint32_t word =
          Load32(block + 16 * (32 * (step / 4) + lane) + 4 * (step % 4));
      const int bit = in_step % 2 * 16 + in_step / 8 * 8 + r / 8 * 4;
      codes[k] = static_cast<uint8_t>(word >> bit & 15);
    }
  }

  void ReadScales(const std::byte* scales, int64_t row, int r, int64_t begin) {
    for (int g = 0; g < layout_.GroupsPerBlock(); ++g) {
      const int64_t at = begin + g * layout_.group;
      if (at >= packed_.k) return;
      const int64_t group = row * numbers_.Groups() + at / layout_.group;
      const std::byte* const from = scales + layout_.ScaleAt(r, g);
      float& scale = numbers_.scales[group];
      float& minimum = numbers_.minimums[group];
      if (layout_.scale == W4Scale::kQ4K) {
        const SixBits six = SixBitsOf(from + 4, g);
        const float super = Half(from);
        numbers_
            .super_scales[row * BlocksPerTile(packed_.k) + begin / kBlockK] =
            super;
        numbers_.sub_scales[group] = static_cast<uint8_t>(six.scale);
        scale = super * static_cast<float>(six.scale);
        minimum = -Half(from + 2) * static_cast<float>(six.minimum);
        continue;
      }
      scale = packed_.tensor_scale * Half(from);
      if (layout_.scale == W4Scale::kScale) {
        minimum = -8 * scale;
      } else if (layout_.scale == W4Scale::kScaleMin) {
        minimum = packed_.tensor_scale * Half(from + 2);
      } else {
        minimum = -scale * Half(from + 2);
      }
    }
  }

  const PackedW4& packed_;
  const W4Layout layout_;
  W4Numbers& numbers_;
};

}  // namespace

absl::StatusOr<W4Numbers> TakeApart(const PackedW4& packed, int threads) {
  if (packed.layout.code != W4Code::kInt4) {
    return absl::InvalidArgumentError(
        "E2M1 codes cannot be multiplied as integers");
  }
  W4Numbers numbers{.n = packed.n,
                    .k = packed.k,
                    .group = packed.layout.group,
                    .symmetric = packed.layout.scale == W4Scale::kScale};
  const int64_t groups = packed.n * numbers.Groups();
  numbers.codes.resize(static_cast<size_t>(packed.n * packed.k));
  numbers.scales.resize(static_cast<size_t>(groups));
  numbers.minimums.resize(static_cast<size_t>(groups));
  if (packed.layout.scale == W4Scale::kQ4K) {
    numbers.super_scales.resize(
        static_cast<size_t>(packed.n * BlocksPerTile(packed.k)));
    numbers.sub_scales.resize(static_cast<size_t>(groups));
  }
  std::atomic<int64_t> next = 0;
  const auto work = [&] {
    RowReader reader(packed, numbers);
    for (int64_t row = next++; row < packed.n; row = next++) reader.Read(row);
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
  return numbers;
}

}  // namespace nibble::kernels::cuda
