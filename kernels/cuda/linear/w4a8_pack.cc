#include "kernels/cuda/linear/w4a8_pack.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "base/check.h"
#include "kernels/little_endian.h"
#include "kernels/reference/half.h"

namespace nibble::kernels::cuda {
namespace {

constexpr int kMaxCode = 127;  // of 8 bits

// Calls body(i) for i in [0, count) from `threads` threads.
template <typename Body>
void Spread(int64_t count, int threads, const Body& body) {
  std::atomic<int64_t> next = 0;
  const auto work = [&] {
    for (int64_t i = next++; i < count; i = next++) body(i);
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
}

// What stands for a group of a row where kRerounded: codes are first made
// code - base, or base - code where `flipped`, so that scales are not negative
// and code 0 is in range. By value.
struct Multiplier {
  int base = 0;
  bool flipped = false;
  int m = 0;
  int o = 128;
};

int Flip(const Multiplier& to, int code) {
  return to.flipped ? to.base - code : code - to.base;
}

// The greatest magnitude of a row's weights.
float GreatestWeight(const W4Numbers& numbers, int64_t row) {
  float greatest = 0;
  for (int64_t j = 0; j < numbers.k; ++j) {
    const int64_t group = row * numbers.Groups() + j / numbers.group;
    const auto code = static_cast<float>(numbers.codes[row * numbers.k + j]);
    greatest = std::max(greatest, std::fabs(numbers.scales[group] * code +
                                            numbers.minimums[group]));
  }
  return greatest;
}

// `count` codes of one group. m and o are even, o such that the middle code is
// right whatever m's rounding.
Multiplier MultiplierOf(const uint8_t* codes, int64_t count, double scale,
                        double minimum, double row_scale) {
  const auto [least, greatest] = std::minmax_element(codes, codes + count);
  Multiplier to;
  if (row_scale == 0) return to;
  to.flipped = scale < 0;
  to.base = to.flipped ? *greatest : *least;
  const int range = *greatest - *least;
  constexpr double kUnit = 256, kHalf = 128;
  if (range > 0) {
    to.m = 2 * static_cast<int>(
                   std::lround(std::fabs(scale) / row_scale * kUnit / 2));
  }
  const double base = (scale * to.base + minimum) / row_scale;
  const double middle = 0.5 * range;
  const double wanted =
      kUnit * (base + middle * std::fabs(scale) / row_scale) + kHalf;
  to.o = 2 * static_cast<int>(std::lround((wanted - middle * to.m) / 2));
  return to;
}

// Writes one tile's blocks. By value.
class TilePacker {
 public:
  TilePacker(const W4Numbers& numbers, PackedW4a8& packed, int64_t tile)
      : numbers_(numbers), packed_(packed), tile_(tile) {}

  void Pack() {
    for (int r = 0; r < kW4a8TileRows; ++r) {
      const int64_t row = tile_ * kW4a8TileRows + r;
      if (row >= numbers_.n) break;
      PackRow(row, r);
    }
  }

 private:
  W4a8Format format() const { return packed_.format; }

  std::byte* Block(int64_t stage, int r) const {
    const int64_t stages =
        W4a8MinStages(format(), numbers_.k) + W4a8Stages(numbers_.k);
    return packed_.blocks.data() +
           ((tile_ * stages + stage) * 2 + r / kW4a8BlockRows) *
               format().BlockBytes();
  }
  std::byte* KBlock(int64_t stage, int r) const {
    return Block(W4a8MinStages(format(), numbers_.k) + stage, r);
  }
  static int FragmentRow(int r) {
    const int in_four = r % 4;
    return r % 16 / 4 * 2 + in_four % 2 + in_four / 2 * 8;
  }
  // Byte of word `word` of a lane.
  static int WordAt(int r, int lane_in_row, int word) {
    const int warp = r % kW4a8BlockRows / 16;
    const int lane = FragmentRow(r) % 8 * 4 + lane_in_row;
    return 1024 * warp + 512 * (word / 4) + 16 * lane + word % 4 * 4;
  }
  static void PutCode(std::byte* block, int r, int k, int code) {
    const int step = k / 32, in_step = k % 32;
    std::byte& at = block[WordAt(r, in_step % 16 / 4, 2 * step + in_step / 16) +
                          in_step % 4];
    at |= static_cast<std::byte>(code << FragmentRow(r) / 8 * 4);
  }
  std::byte* ScalesOf(std::byte* block, int r) const {
    const int pair = r % kW4a8BlockRows / 16 * 8 + FragmentRow(r) % 8;
    return block + kW4a8CodeBytes +
           (2 * pair + FragmentRow(r) / 8) * format().RowBytes();
  }

  void PackRow(int64_t row, int r) {
    double row_scale = 0;
    if (format().kind == W4a8Kind::kRerounded) {
      const float scale =
          GreatestWeight(numbers_, row) / static_cast<float>(kMaxCode);
      packed_.row_scales[row] = scale;
      row_scale = scale;
    }
    if (format().HasMinimums()) PackMinimums(row, r);
    if (format().HasOffsets()) packed_.row_offsets[row] = OffsetOf(row);
    // Groups of 64 are two of 32.
    for (int64_t begin = 0; begin < numbers_.k; begin += format().group) {
      PackGroup(row, r, begin, row_scale);
    }
  }

  // Where the sums of a row begin, so that the offset of x is not in them.
  float OffsetOf(int64_t row) const {
    double sum = 0;
    for (int64_t begin = 0; begin < numbers_.k; begin += format().group) {
      const int64_t end = std::min(begin + format().group, numbers_.k);
      int64_t codes = 0;
      for (int64_t i = begin; i < end; ++i) {
        codes += numbers_.codes[row * numbers_.k + i];
      }
      sum += double{numbers_.scales[row * numbers_.Groups() +
                                    begin / numbers_.group]} *
             static_cast<double>(codes);
    }
    return static_cast<float>(-kW4a8XOffset * sum * format().SumUnit());
  }

  void PackMinimums(int64_t row, int r) {
    const int64_t groups = DivideUp(numbers_.k, int64_t{format().group});
    for (int64_t group = 0; group < groups; ++group) {
      const float minimum =
          numbers_.minimums[row * numbers_.Groups() +
                            group * format().group / numbers_.group] *
          format().SumUnit();
      const uint16_t high = reference::FloatToBFloat16(minimum);
      const uint16_t low = reference::FloatToBFloat16(
          minimum - reference::BFloat16ToFloat(high));
      const uint32_t both = high | static_cast<uint32_t>(low) << 16;
      const int in_stage = static_cast<int>(group % kW4a8MinGroups);
      std::memcpy(
          Block(group / kW4a8MinGroups, r) +
              WordAt(r, in_stage % 4, 2 * (in_stage / 4) + FragmentRow(r) / 8),
          &both, sizeof(both));
    }
  }

  void PackGroup(int64_t row, int r, int64_t begin, double row_scale) {
    const int64_t count = std::min<int64_t>(format().group, numbers_.k - begin);
    const uint8_t* const codes =
        numbers_.codes.data() + row * numbers_.k + begin;
    const int64_t group = row * numbers_.Groups() + begin / numbers_.group;
    std::byte* const block = KBlock(begin / kW4a8StageK, r);
    const int in_stage = static_cast<int>(begin % kW4a8StageK);
    std::byte* const scales = ScalesOf(block, r);
    const int index = in_stage / format().group;
    Multiplier to;
    if (format().kind == W4a8Kind::kRerounded) {
      to = MultiplierOf(codes, count, numbers_.scales[group],
                        numbers_.minimums[group], row_scale);
      const auto m = static_cast<uint16_t>(to.m);
      const auto o = static_cast<int16_t>(to.o);
      std::memcpy(scales + 4 * index, &m, 2);
      std::memcpy(scales + 4 * index + 2, &o, 2);
    } else if (format().HasSubScales()) {
      scales[index] = static_cast<std::byte>(numbers_.sub_scales[group]);
      const int64_t super_block = begin / kW4a8SuperBlock;
      const float super =
          numbers_.super_scales[row * DivideUp(numbers_.k,
                                               int64_t{kW4a8SuperBlock}) +
                                super_block] *
          format().ScaleUnit();
      // Sums are drained after the second stage, which k may not reach.
      for (int half = 0; half < 2; ++half) {
        std::memcpy(ScalesOf(KBlock(2 * super_block + half, r), r) + 4, &super,
                    4);
      }
    } else {
      const float scale = numbers_.scales[group] * format().ScaleUnit();
      std::memcpy(scales + 4 * index, &scale, 4);
    }
    for (int64_t i = 0; i < count; ++i) {
      int code = codes[i];
      if (format().kind == W4a8Kind::kRerounded) code = Flip(to, code);
      if (format().kind == W4a8Kind::kScale) code ^= 8;
      PutCode(block, r, in_stage + static_cast<int>(i), code);
    }
  }

  const W4Numbers& numbers_;
  PackedW4a8& packed_;
  const int64_t tile_;
};

}  // namespace

std::string_view W4a8Refusal(const W4Numbers& numbers, W4a8Format format) {
  if (numbers.k % 32 != 0) return "k is no multiple of 32";
  if (numbers.group < format.group) {
    return "the weights' groups are smaller than the format's";
  }
  if (format.kind == W4a8Kind::kScale && !numbers.symmetric) {
    return "the weights have minimums, the format has none";
  }
  if (format.HasSubScales() && numbers.sub_scales.empty()) {
    return "the weights have no integer sub-scales";
  }
  return "";
}

absl::StatusOr<PackedW4a8> PackW4a8(const W4Numbers& numbers, W4a8Format format,
                                    int threads) {
  const std::string_view refusal = W4a8Refusal(numbers, format);
  if (!refusal.empty()) {
    return absl::InvalidArgumentError(std::string(refusal));
  }
  PackedW4a8 packed{.format = format, .n = numbers.n, .k = numbers.k};
  packed.blocks.resize(
      static_cast<size_t>(W4a8PackedBytes(format, numbers.n, numbers.k)));
  if (format.kind == W4a8Kind::kRerounded) {
    packed.row_scales.resize(static_cast<size_t>(numbers.n));
  }
  if (format.HasOffsets()) {
    packed.row_offsets.resize(static_cast<size_t>(numbers.n));
  }
  Spread(W4a8Tiles(numbers.n), threads,
         [&](int64_t tile) { TilePacker(numbers, packed, tile).Pack(); });
  return packed;
}

int W4a8CodeAt(const PackedW4a8& packed, int64_t row, int64_t column) {
  NIBBLE_CHECK(row >= 0 && row < packed.n && column >= 0 && column < packed.k);
  const W4a8Format format = packed.format;
  const int64_t stages = W4a8MinStages(format, packed.k) + W4a8Stages(packed.k);
  const int64_t stage = W4a8MinStages(format, packed.k) + column / kW4a8StageK;
  const auto r = static_cast<int>(row % kW4a8TileRows);
  const std::byte* const block =
      packed.blocks.data() +
      ((row / kW4a8TileRows * stages + stage) * 2 + r / kW4a8BlockRows) *
          format.BlockBytes();
  int fragment_row = 0;
  while (W4a8Row(fragment_row) != r % 16) ++fragment_row;
  const int warp = r % kW4a8BlockRows / 16;
  const auto in_stage = static_cast<int>(column % kW4a8StageK);
  const int step = in_stage / 32, in_step = in_stage % 32;
  const int word = 2 * step + in_step / 16;
  const int lane = fragment_row % 8 * 4 + in_step % 16 / 4;
  const int byte = Load8(block + 1024 * warp + 512 * (word / 4) + 16 * lane +
                         word % 4 * 4 + in_step % 4);
  const int code = byte >> fragment_row / 8 * 4 & 15;
  if (format.kind == W4a8Kind::kScale) return code >= 8 ? code - 16 : code;
  if (format.kind != W4a8Kind::kRerounded) return code;
  const std::byte* const scales =
      block + kW4a8CodeBytes +
      ((warp * 8 + fragment_row % 8) * 2 + fragment_row / 8) *
          format.RowBytes() +
      in_stage / format.group * 4;
  return W4a8Rerounded(code, Load16(scales),
                       static_cast<int16_t>(Load16(scales + 2)));
}

}  // namespace nibble::kernels::cuda
