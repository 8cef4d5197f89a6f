#include <algorithm>
#include <cstring>

#include "kernels/cuda/linear/pack_tile.h"
#include "kernels/little_endian.h"

namespace nibble::kernels::cuda {
namespace {

// The codes of a block, a byte each, by row of the tile and column.
using Codes = std::array<std::array<uint8_t, kBlockK>, kTileRows>;

struct Columns {
  int64_t begin = 0;
  int count = 0;  // kBlockK, or fewer in the last block
};

// Two codes along k in each byte, the low half first.
void ReadPairs(const std::byte* bytes, int count, uint8_t* codes) {
  for (int i = 0; i < count / 2; ++i) {
    const uint8_t byte = Load8(bytes + i);
    codes[2 * i] = byte & 15;
    codes[2 * i + 1] = byte >> 4;
  }
}

// GGUF: `count` bytes whose low halves are the first `count` codes, their high
// halves the next.
void ReadHalves(const std::byte* bytes, int count, uint8_t* codes) {
  for (int i = 0; i < count; ++i) {
    const uint8_t byte = Load8(bytes + i);
    codes[i] = byte & 15;
    codes[i + count] = byte >> 4;
  }
}

// Q4_0 and Q4_1, whose blocks end in 16 bytes of codes.
void ReadSmallBlocks(const std::byte* block, int block_bytes, int count,
                     uint8_t* codes) {
  constexpr int kBlock = 32;
  for (int i = 0; i < count; i += kBlock, block += block_bytes) {
    ReadHalves(block + block_bytes - kBlock / 2, kBlock / 2, codes + i);
  }
}

// Q4_K, whose codes follow the 16 bytes of scales: 32 bytes hold 64.
void ReadSuperBlock(const std::byte* block, uint8_t* codes) {
  for (int i = 0; i < kBlockK; i += 64) {
    ReadHalves(block + kQ4KBytes + i / 2, 32, codes + i);
  }
}

int64_t SourceColumn(const BlockFormat& format, int64_t column) {
  return format.x_perm.empty() ? column : format.x_perm[column];
}

// Nibble 0 of AWQ's int32 is of row 0, nibble 1 of row 2, and so on.
constexpr std::array<int, 8> kAwqRow = {0, 2, 4, 6, 1, 3, 5, 7};

void ReadAwq(const TileRun& run, const Columns& columns, Codes* codes) {
  const WeightView& w = *run.weight;
  for (int c = 0; c < columns.count; ++c) {
    const std::byte* words =
        w.data + 4 * ((columns.begin + c) * (w.n / 8) + run.row / 8);
    for (int r = 0; r < run.count; r += 8, words += 4) {
      const uint32_t word = Load32(words);
      for (int i = 0; i < 8; ++i) {
        (*codes)[run.first + r + kAwqRow[i]][c] = word >> (4 * i) & 15;
      }
    }
  }
}

void ReadGptq(const TileRun& run, const BlockFormat& format,
              const Columns& columns, Codes* codes) {
  const WeightView& w = *run.weight;
  for (int c = 0; c < columns.count; ++c) {
    const int64_t column = SourceColumn(format, columns.begin + c);
    const std::byte* words = w.data + 4 * (column / 8 * w.n + run.row);
    const auto shift = static_cast<int>(column % 8 * 4);
    for (int r = 0; r < run.count; ++r) {
      (*codes)[run.first + r][c] = Load32(words + 4 * r) >> shift & 15;
    }
  }
}

void ReadRow(const WeightView& w, int64_t row, const Columns& columns,
             uint8_t* codes) {
  const int block_bytes = Info(w.format).block_bytes;
  switch (w.format) {
    case QuantFormat::kQ4_0:
    case QuantFormat::kQ4_1:
      return ReadSmallBlocks(w.Row(row) + columns.begin / 32 * block_bytes,
                             block_bytes, columns.count, codes);
    case QuantFormat::kQ4_K:
      return ReadSuperBlock(w.Row(row) + columns.begin / kBlockK * block_bytes,
                            codes);
    default:
      return ReadPairs(w.data + (row * w.k + columns.begin) / 2, columns.count,
                       codes);
  }
}

void ReadCodes(const TileRun& run, const BlockFormat& format,
               const Columns& columns, Codes* codes) {
  if (run.weight->format == QuantFormat::kAwq) {
    return ReadAwq(run, columns, codes);
  }
  if (run.weight->format == QuantFormat::kGptq) {
    return ReadGptq(run, format, columns, codes);
  }
  for (int r = 0; r < run.count; ++r) {
    ReadRow(*run.weight, run.row + r, columns, (*codes)[run.first + r].data());
  }
}

// Gives the codes of MXFP4 and NVFP4 what their packed scales cannot say
// (w4_layout.h): zeros where the scale is zero or NaN, and its sign.
void ApplyToCodes(const TileRun& run, const Columns& columns, Codes* codes) {
  constexpr uint8_t kSign = 8;
  const WeightView& w = *run.weight;
  const auto group = static_cast<int>(w.Group());
  for (int r = 0; r < run.count; ++r) {
    for (int begin = 0; begin < columns.count; begin += group) {
      const uint8_t scale = Load8(w.scales + (run.row + r) * w.Groups() +
                                  (columns.begin + begin) / group);
      const bool e4m3 = w.format == QuantFormat::kNvfp4;
      const bool zero = e4m3 ? (scale & 0x7f) == 0 : scale == 255;
      const uint8_t flip = e4m3 && scale >= 0x80 ? kSign : 0;
      if (!zero && flip == 0) continue;
      for (int c = begin; c < std::min(begin + group, columns.count); ++c) {
        uint8_t& code = (*codes)[run.first + r][c];
        code = static_cast<uint8_t>((zero ? code & kSign : code) ^ flip);
      }
    }
  }
}

// A byte (low half: row g, high half: row g + 8) as the bits of its two codes
// in a half of a word; index 0 for columns 2t and 2t + 1, 1 for those 8 later.
constexpr std::array<std::array<uint16_t, 256>, 2> MakeE2m1Table() {
  std::array<std::array<uint16_t, 256>, 2> table = {};
  for (int high = 0; high < 2; ++high) {
    for (int byte = 0; byte < 256; ++byte) {
      int bits = 0;
      for (int row = 0; row < 2; ++row) {
        for (int i = 0; i < 4; ++i) {  // sign first
          bits |= (byte >> (4 * row + 3 - i) & 1)
                  << kE2m1Bits[2 * high + row][i];
        }
      }
      table[high][byte] = static_cast<uint16_t>(bits);
    }
  }
  return table;
}
constexpr auto kE2m1Table = MakeE2m1Table();

// The half words of columns (c, c + 8): `low` and `high` hold two rows' codes.
template <W4Code kCode>
uint32_t HalfWord(uint8_t low, uint8_t high) {
  if constexpr (kCode == W4Code::kE2m1) {
    return kE2m1Table[0][low] | kE2m1Table[1][high];
  } else {
    return low | static_cast<uint32_t>(high) << 8;
  }
}

template <W4Code kCode>
void WriteWords(const Codes& codes, std::byte* out) {
  for (int g = 0; g < kTileRows / 2; ++g) {
    std::array<uint8_t, kBlockK> rows;  // g in the low half, g + 8 in the high
    for (int c = 0; c < kBlockK; ++c) {
      rows[c] = static_cast<uint8_t>(codes[g][c] | codes[g + 8][c] << 4);
    }
    for (int step = 0; step < kBlockK / kStepK; ++step) {
      const uint8_t* at = rows.data() + step * kStepK;
      std::byte* words = out + 16 * (32 * (step / 4) + 4 * g) + 4 * (step % 4);
      for (int t = 0; t < 4; ++t) {
        const uint32_t word = HalfWord<kCode>(at[2 * t], at[2 * t + 8]) |
                              HalfWord<kCode>(at[2 * t + 1], at[2 * t + 9])
                                  << 16;
        std::memcpy(words + 16 * t, &word, sizeof(word));
      }
    }
  }
}

}  // namespace

void PackCodes(std::span<const TileRun> runs, const BlockFormat& format,
               int64_t block, std::byte* out) {
  Codes codes = {};
  for (const TileRun& run : runs) {
    const int64_t begin = block * kBlockK;
    const auto count =
        static_cast<int>(std::min<int64_t>(kBlockK, run.weight->k - begin));
    ReadCodes(run, format, {begin, count}, &codes);
    if (format.layout.code == W4Code::kE2m1) {
      ApplyToCodes(run, {begin, count}, &codes);
    }
  }
  if (format.layout.code == W4Code::kE2m1) {
    WriteWords<W4Code::kE2m1>(codes, out);
  } else {
    WriteWords<W4Code::kInt4>(codes, out);
  }
}

}  // namespace nibble::kernels::cuda
