// Puts what belongs to one row into a block of a panel (packed_format.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/cpu/packed_format.h"
#include "kernels/weight_view.h"

namespace nibble::kernels::cpu {

inline constexpr int kBlockWeights = 32;

// 32 codes of `bits` bits of row `row` of the panel. `block` was zero there.
inline void PutCodes(const uint8_t* codes, int bits, int row,
                     std::byte* block) {
  auto* out = reinterpret_cast<uint8_t*>(block) + 4 * row;
  if (bits == 8) {
    for (int i = 0; i < kBlockWeights; ++i) {
      out[i / 4 * 64 + i % 4] = codes[i];
    }
    return;
  }
  for (int i = 0; i < kBlockWeights; ++i) {
    const int slab = i / 4;
    out[slab / 2 * 64 + i % 4] |= (codes[i] & 0xf) << (slab % 2 * 4);
  }
  uint8_t* upper = out + 4 * 64;
  for (int i = 0; bits > 4 && i < kBlockWeights; ++i) {
    const int slab = i / 4;
    const int plane = bits == 5 ? 0 : slab / 4;
    const int at = bits == 5 ? slab : slab % 4 * 2;
    upper[plane * 64 + i % 4] |= (codes[i] >> 4) << at;
  }
}

inline void Put16(uint16_t bits, int row, std::byte* out) {
  std::memcpy(out + 2 * row, &bits, sizeof(bits));
}

// PackPanel of a Grouped() format.
void PackGroupPanel(const WeightView& weight, std::span<const int32_t> order,
                    int64_t panel, const PackedFormat& packed, std::byte* out);

}  // namespace nibble::kernels::cpu
