#include "kernels/cuda/linear/inst/w8a8_mma_kernels.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "base/check.h"

namespace nibble::kernels::cuda {
namespace {

using Table = std::array<std::vector<const void*>, std::size(kW8Kinds)>;

Table MakeTable() {
  Table table;
  table[static_cast<size_t>(W8Kind::kInt8)] = W8MmaInt8Kernels();
  table[static_cast<size_t>(W8Kind::kE4m3)] = W8MmaE4m3Kernels();
  table[static_cast<size_t>(W8Kind::kE4m3Fast)] = W8MmaE4m3FastKernels();
  table[static_cast<size_t>(W8Kind::kE4m3Block)] = W8MmaE4m3BlockKernels();
  table[static_cast<size_t>(W8Kind::kInt8Group)] = W8MmaInt8GroupKernels();
  return table;
}

}  // namespace

const void* W8MmaKernelOf(W8Kind kind, const W8Tile& tile) {
  static const Table table = MakeTable();
  const auto* const at =
      std::find(std::begin(kW8MmaTiles), std::end(kW8MmaTiles), tile);
  NIBBLE_CHECK(at != std::end(kW8MmaTiles));
  return table[static_cast<size_t>(kind)]
              [static_cast<size_t>(at - std::begin(kW8MmaTiles))];
}

}  // namespace nibble::kernels::cuda
