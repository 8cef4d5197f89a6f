#include "kernels/cpu/pack.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "kernels/cpu/pack_codes.h"
#include "kernels/cpu/packed_format.h"
#include "kernels/little_endian.h"

namespace nibble::kernels::cpu {
namespace {

constexpr int kSuperWeights = 256;  // of a super-block

// One block of a file taken apart: unsigned codes in order of k and the bits
// of its scales. Layouts: the GGUF specification's block structs.
struct FileBlock {
  uint8_t codes[kSuperWeights];
  uint16_t d;    // FP16
  uint16_t min;  // FP16; for K formats dmin, subtracted
  uint8_t sub_scales[16];
  uint8_t sub_mins[8];
};

// 32 codes: the low nibbles of 16 bytes, then the high ones.
void Nibbles(const std::byte* from, int count, uint8_t* codes) {
  for (int i = 0; i < count; ++i) {
    codes[i] = std::to_integer<uint8_t>(from[i] & std::byte{0xf});
    codes[count + i] = std::to_integer<uint8_t>(from[i] >> 4);
  }
}

void AddFifthBits(uint32_t bits, uint8_t* codes) {
  for (int i = 0; i < kBlockWeights; ++i) codes[i] |= (bits >> i & 1) << 4;
}

// The eight 6-bit scales and minimums of Q4_K and Q5_K: 12 bytes.
void UnpackSubScales(const std::byte* from, FileBlock* out) {
  const auto* q = reinterpret_cast<const uint8_t*>(from);
  for (int j = 0; j < 4; ++j) {
    out->sub_scales[j] = q[j] & 63;
    out->sub_mins[j] = q[j + 4] & 63;
    out->sub_scales[j + 4] = (q[j + 8] & 0xf) | q[j] >> 6 << 4;
    out->sub_mins[j + 4] = q[j + 8] >> 4 | q[j + 4] >> 6 << 4;
  }
}

void ReadQ4K(const std::byte* at, FileBlock* out) {
  UnpackSubScales(at + 4, out);
  for (int j = 0; j < 4; ++j) {
    Nibbles(at + 16 + 32 * j, 32, out->codes + 64 * j);
  }
}

void ReadQ5K(const std::byte* at, FileBlock* out) {
  UnpackSubScales(at + 4, out);
  const std::byte* upper = at + 16;
  for (int j = 0; j < 4; ++j) {
    Nibbles(at + 48 + 32 * j, 32, out->codes + 64 * j);
  }
  for (int i = 0; i < kSuperWeights; ++i) {
    const auto bits = std::to_integer<uint8_t>(upper[i % 32]);
    out->codes[i] |= (bits >> (i / 32) & 1) << 4;
  }
}

void ReadQ6K(const std::byte* at, FileBlock* out) {
  const std::byte* upper = at + 128;
  for (int half = 0; half < 2; ++half) {
    uint8_t* codes = out->codes + 128 * half;
    // 64 bytes hold weights 0 to 63 in low, 64 to 127 in high nibbles.
    Nibbles(at + 64 * half, 64, codes);
    for (int i = 0; i < 128; ++i) {
      const auto bits = std::to_integer<uint8_t>(upper[32 * half + i % 32]);
      codes[i] |= (bits >> (i / 32 * 2) & 3) << 4;
    }
  }
  std::memcpy(out->sub_scales, at + 192, 16);
  out->d = Load16(at + 208);
}

void ReadFileBlock(QuantFormat format, const std::byte* at, FileBlock* out) {
  out->d = Load16(at);
  switch (format) {
    case QuantFormat::kQ4_0:
      return Nibbles(at + 2, 16, out->codes);
    case QuantFormat::kQ4_1:
      out->min = Load16(at + 2);
      return Nibbles(at + 4, 16, out->codes);
    case QuantFormat::kQ5_0:
      Nibbles(at + 6, 16, out->codes);
      return AddFifthBits(Load32(at + 2), out->codes);
    case QuantFormat::kQ5_1:
      out->min = Load16(at + 2);
      Nibbles(at + 8, 16, out->codes);
      return AddFifthBits(Load32(at + 4), out->codes);
    case QuantFormat::kQ8_0:
      for (int i = 0; i < kBlockWeights; ++i) {
        out->codes[i] = std::to_integer<uint8_t>(at[2 + i]) ^ 0x80;
      }
      return;
    case QuantFormat::kQ4_K:
      out->min = Load16(at + 2);
      return ReadQ4K(at, out);
    case QuantFormat::kQ5_K:
      out->min = Load16(at + 2);
      return ReadQ5K(at, out);
    case QuantFormat::kQ6_K:
      return ReadQ6K(at, out);
    case QuantFormat::kF32:
    case QuantFormat::kF16:
    case QuantFormat::kBF16:
    case QuantFormat::kInt4:
    case QuantFormat::kInt4Sym:
    case QuantFormat::kAwq:
    case QuantFormat::kGptq:
    case QuantFormat::kMxfp4:
    case QuantFormat::kNvfp4:
      break;
  }
  NIBBLE_CHECK(false);
}

class PanelWriter final {
 public:
  PanelWriter(QuantFormat format, const PackedFormat& packed, std::byte* out)
      : format_(format), packed_(packed), out_(out) {}

  void WriteRow(const std::byte* row, int64_t k, int lane) {
    const FormatInfo& info = Info(format_);
    FileBlock block;
    std::byte* at = out_;
    for (int64_t i = 0; i < k; i += info.block_elements) {
      ReadFileBlock(format_, row, &block);
      row += info.block_bytes;
      at = packed_.HeaderBytes() != 0 ? WriteSuper(block, lane, at)
                                      : WriteSimple(block, lane, at);
    }
  }

 private:
  std::byte* WriteSimple(const FileBlock& block, int lane, std::byte* at) {
    PutCodes(block.codes, packed_.code_bits, lane, at);
    std::byte* scales = at + packed_.CodeBytes();
    Put16(block.d, lane, scales);
    if (packed_.scaling == Scaling::kScaleMin) {
      Put16(block.min, lane, scales + 2 * kPanelRows);
    }
    return at + packed_.BlockBytes();
  }

  std::byte* WriteSuper(const FileBlock& block, int lane, std::byte* at) {
    const bool halves = packed_.scaling == Scaling::kSuper16;
    Put16(block.d, lane, at);
    // dmin is subtracted; the kernels add.
    if (!halves) Put16(block.min ^ 0x8000, lane, at + 2 * kPanelRows);
    at += packed_.HeaderBytes();
    for (int j = 0; j < kSuperBlocks; ++j) {
      PutCodes(block.codes + kBlockWeights * j, packed_.code_bits, lane, at);
      std::byte* scales = at + packed_.CodeBytes() + lane;
      const int first = halves ? 2 * j : j;
      scales[0] = std::byte{block.sub_scales[first]};
      scales[kPanelRows] =
          std::byte{halves ? block.sub_scales[first + 1] : block.sub_mins[j]};
      at += packed_.BlockBytes();
    }
    return at;
  }

  QuantFormat format_;
  PackedFormat packed_;
  std::byte* out_;
};

// out [k][16] elements of T.
template <typename T>
void InterleaveRow(const std::byte* row, int64_t k, int lane, std::byte* out) {
  for (int64_t i = 0; i < k; ++i) {
    std::memcpy(out + (i * kPanelRows + lane) * sizeof(T), row + i * sizeof(T),
                sizeof(T));
  }
}

}  // namespace

int64_t PanelBytes(const WeightView& weight) {
  const std::optional<PackedFormat> packed = PackedFormatOf(weight);
  return packed ? packed->PanelBytes(weight.k / kBlockWeights,
                                     HeaderBlocks(weight))
                : RowBytes(weight.format, weight.k) * kPanelRows;
}

void PackPanel(const WeightView& weight, std::span<const int32_t> order,
               int64_t panel, std::byte* out) {
  const int64_t begin = panel * kPanelRows;
  const auto rows =
      static_cast<int>(std::min<int64_t>(kPanelRows, weight.n - begin));
  const std::optional<PackedFormat> packed = PackedFormatOf(weight);
  if (packed && packed->Grouped()) {
    return PackGroupPanel(weight, order, panel, *packed, out);
  }
  for (int lane = 0; lane < rows; ++lane) {
    const std::byte* row = weight.Row(begin + lane);
    if (packed) {
      PanelWriter(weight.format, *packed, out).WriteRow(row, weight.k, lane);
    } else if (weight.format == QuantFormat::kF32) {
      InterleaveRow<uint32_t>(row, weight.k, lane, out);
    } else {
      InterleaveRow<uint16_t>(row, weight.k, lane, out);
    }
  }
}

}  // namespace nibble::kernels::cpu
