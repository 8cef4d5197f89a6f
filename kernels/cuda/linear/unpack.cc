// The layout read back as w4_layout.h describes it, one weight at a time.
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "kernels/cuda/linear/pack.h"
#include "kernels/cuda/linear/pack_tile.h"
#include "kernels/little_endian.h"
#include "kernels/reference/half.h"
#include "kernels/reference/minifloat.h"

namespace nibble::kernels::cuda {
namespace {

// The code of row `row` of the tile and column `k` of the block.
int CodeAt(const W4Layout& layout, const std::byte* block, int row, int k) {
  const int step = k / kStepK;
  const int in_step = k % kStepK;
  const int lane = row % 8 * 4 + in_step % 8 / 2;
  const int pair = in_step / 8 * 2 + row / 8;
  const uint32_t word =
      Load32(block + 16 * (32 * (step / 4) + lane) + 4 * (step % 4));
  const uint32_t half = word >> (16 * (in_step % 2)) & 0xffff;
  if (layout.code == W4Code::kInt4) {
    return static_cast<int>(half >> (4 * pair) & 15);
  }
  int code = 0;
  for (const int bit : kE2m1Bits[pair]) {  // from the sign down
    code = code << 1 | static_cast<int>(half >> bit & 1);
  }
  return code;
}

float Half(const std::byte* at) { return reference::HalfToFloat(Load16(at)); }

// { f16 d, f16 dmin, u8 scales[12] }: the 6-bit scale and minimum of a group.
// Bytes 0..3 hold the scales of groups 0..3, bytes 4..7 their minimums, both
// with two upper bits of groups 4..7 on top, whose lower four bits are in bytes
// 8..11.
float Q4KWeight(const std::byte* row, int group, int code) {
  const std::byte* packed = row + 4;
  const auto at = [packed](int i) {
    return static_cast<int>(Load8(packed + i));
  };
  int scale = at(group % 4) & 63;
  int minimum = at(group % 4 + 4) & 63;
  if (group >= 4) {
    scale = (at(group + 4) & 15) | at(group - 4) >> 6 << 4;
    minimum = at(group + 4) >> 4 | at(group) >> 6 << 4;
  }
  return Half(row) * static_cast<float>(scale) * static_cast<float>(code) -
         Half(row + 2) * static_cast<float>(minimum);
}

float E8m0Scale(int byte) {
  return byte == 255
             ? std::numeric_limits<float>::quiet_NaN()
             : reference::E8m0ToFloat(static_cast<uint8_t>(byte - kE8m0Shift));
}

float E5m3Scale(int byte) {
  return std::ldexp(static_cast<float>(8 + byte % 8), byte / 8 - kE5m3Bias - 3);
}

float WeightAt(const W4Layout& layout, float tensor_scale,
               const std::byte* block, int row, int k) {
  const int code = CodeAt(layout, block, row, k);
  const int group = k / layout.group;
  const std::byte* scales = block + kCodeBytes + layout.ScaleAt(row, group);
  if (layout.scale == W4Scale::kQ4K) return Q4KWeight(scales, group, code);
  switch (layout.scale) {
    case W4Scale::kScale:
      return tensor_scale * (Half(scales) * static_cast<float>(code - 8));
    case W4Scale::kScaleMin:
      return tensor_scale *
             (Half(scales) * static_cast<float>(code) + Half(scales + 2));
    case W4Scale::kScaleZero:
      return tensor_scale *
             (Half(scales) * (static_cast<float>(code) - Half(scales + 2)));
    case W4Scale::kE8m0:
      return tensor_scale *
             (E8m0Scale(Load8(scales)) * reference::E2m1ToFloat(code));
    case W4Scale::kE4m3:
      return tensor_scale *
             (E5m3Scale(Load8(scales)) * reference::E2m1ToFloat(code));
    case W4Scale::kQ4K:
      break;
  }
  ::nibble::internal::CheckFailed(__FILE__, __LINE__, "a layout of no scales");
}

}  // namespace

void UnpackW4Row(const PackedW4& packed, int64_t row, float* out) {
  NIBBLE_CHECK(row >= 0 && row < packed.n);
  const int block_bytes = packed.layout.BlockBytes();
  const std::byte* tile = packed.blocks.data() + row / kTileRows *
                                                     BlocksPerTile(packed.k) *
                                                     block_bytes;
  for (int64_t c = 0; c < packed.k; ++c) {
    const int64_t column = packed.x_perm.empty() ? c : packed.x_perm[c];
    out[column] = WeightAt(
        packed.layout, packed.tensor_scale, tile + c / kBlockK * block_bytes,
        static_cast<int>(row % kTileRows), static_cast<int>(c % kBlockK));
  }
}

}  // namespace nibble::kernels::cuda
