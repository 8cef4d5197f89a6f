#include "kernels/cuda/linear/inst/w8a8_kernels.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>

#include "base/check.h"

namespace nibble::kernels::cuda {
namespace {

using Table = std::array<std::vector<const void*>, std::size(kW8Kinds)>;

Table MakeTable() {
  Table table;
  table[static_cast<size_t>(W8Kind::kInt8)] = W8Int8Kernels();
  table[static_cast<size_t>(W8Kind::kE4m3)] = W8E4m3Kernels();
  table[static_cast<size_t>(W8Kind::kE4m3Fast)] = W8E4m3FastKernels();
  table[static_cast<size_t>(W8Kind::kE4m3Block)] = W8E4m3BlockKernels();
  table[static_cast<size_t>(W8Kind::kInt8Group)] = W8Int8GroupKernels();
  return table;
}

}  // namespace

const void* W8KernelOf(W8Kind kind, const W8Tile& tile) {
  static const Table table = MakeTable();
  const std::span<const W8Tile> tiles = W8Tiles(kind);
  const auto at = std::find(tiles.begin(), tiles.end(), tile);
  NIBBLE_CHECK(at != tiles.end());
  const auto& kernels = table[static_cast<size_t>(kind)];
  NIBBLE_CHECK_EQ(kernels.size(), tiles.size());
  return kernels[static_cast<size_t>(at - tiles.begin())];
}

}  // namespace nibble::kernels::cuda
