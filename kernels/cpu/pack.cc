#include "kernels/cpu/pack.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "kernels/cpu/packed_format.h"

namespace nibble::kernels::cpu {
namespace {

constexpr int kWeights = 32;        // of a block of a panel
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

uint16_t Load16(const std::byte* from) {
  uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return bits;
}

uint32_t Load32(const std::byte* from) {
  uint32_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return bits;
}

// 32 codes: the low nibbles of 16 bytes, then the high ones.
void Nibbles(const std::byte* from, int count, uint8_t* codes) {
  for (int i = 0; i < count; ++i) {
    codes[i] = std::to_integer<uint8_t>(from[i] & std::byte{0xf});
    codes[count + i] = std::to_integer<uint8_t>(from[i] >> 4);
  }
}

void AddFifthBits(uint32_t bits, uint8_t* codes) {
  for (int i = 0; i < kWeights; ++i) codes[i] |= (bits >> i & 1) << 4;
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
      for (int i = 0; i < kWeights; ++i) {
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

// Puts the 32 codes of one row into a block of a panel (packed_format.h).
void PutCodes(const uint8_t* codes, int bits, int row, std::byte* block) {
  auto* out = reinterpret_cast<uint8_t*>(block) + 4 * row;
  if (bits == 8) {
    for (int i = 0; i < kWeights; ++i) {
      out[i / 4 * 64 + i % 4] = codes[i];
    }
    return;
  }
  for (int i = 0; i < kWeights; ++i) {
    const int slab = i / 4;
    out[slab / 2 * 64 + i % 4] |= (codes[i] & 0xf) << (slab % 2 * 4);
  }
  uint8_t* upper = out + 4 * 64;
  for (int i = 0; bits > 4 && i < kWeights; ++i) {
    const int slab = i / 4;
    const int plane = bits == 5 ? 0 : slab / 4;
    const int at = bits == 5 ? slab : slab % 4 * 2;
    upper[plane * 64 + i % 4] |= (codes[i] >> 4) << at;
  }
}

void Put16(uint16_t bits, int row, std::byte* out) {
  std::memcpy(out + 2 * row, &bits, sizeof(bits));
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
      at = packed_.SuperBytes() != 0 ? WriteSuper(block, lane, at)
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
    at += packed_.SuperBytes();
    for (int j = 0; j < kSuperBlocks; ++j) {
      PutCodes(block.codes + kWeights * j, packed_.code_bits, lane, at);
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

int64_t PanelBytes(QuantFormat format, int64_t k) {
  const std::optional<PackedFormat> packed = PackedFormatOf(format);
  return packed ? packed->PanelBytes(k / kWeights)
                : RowBytes(format, k) * kPanelRows;
}

void PackPanel(const WeightView& weight, int64_t panel, std::byte* out) {
  const int64_t begin = panel * kPanelRows;
  const auto rows =
      static_cast<int>(std::min<int64_t>(kPanelRows, weight.n - begin));
  const std::optional<PackedFormat> packed = PackedFormatOf(weight.format);
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
