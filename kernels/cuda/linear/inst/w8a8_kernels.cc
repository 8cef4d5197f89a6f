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

Table MakeSiluMulTable() {
  Table table;
  table[static_cast<size_t>(W8Kind::kInt8)] = W8SiluMulInt8Kernels();
  table[static_cast<size_t>(W8Kind::kE4m3)] = W8SiluMulE4m3Kernels();
  table[static_cast<size_t>(W8Kind::kE4m3Fast)] = W8SiluMulE4m3FastKernels();
  table[static_cast<size_t>(W8Kind::kE4m3Block)] = W8SiluMulE4m3BlockKernels();
  table[static_cast<size_t>(W8Kind::kInt8Group)] = W8SiluMulInt8GroupKernels();
  return table;
}

// The one of `kernels` that stands where `tile` does among `tiles`.
const void* KernelFor(const std::vector<const void*>& kernels,
                      std::span<const W8Tile> tiles, const W8Tile& tile) {
  const auto at = std::find(tiles.begin(), tiles.end(), tile);
  NIBBLE_CHECK(at != tiles.end());
  NIBBLE_CHECK_EQ(kernels.size(), tiles.size());
  return kernels[static_cast<size_t>(at - tiles.begin())];
}

}  // namespace

const void* W8KernelOf(W8Kind kind, const W8Tile& tile) {
  static const Table table = MakeTable();
  return KernelFor(table[static_cast<size_t>(kind)], W8Tiles(kind), tile);
}

const void* W8SiluMulKernelOf(W8Kind kind, const W8Tile& tile) {
  static const Table table = MakeSiluMulTable();
  return KernelFor(table[static_cast<size_t>(kind)], kW8SiluMulTiles, tile);
}

}  // namespace nibble::kernels::cuda
