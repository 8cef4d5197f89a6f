// Instantiates the W8A8 kernel for one kind.
#pragma once

#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "kernels/cuda/linear/inst/w8a8_kernels.h"
#include "kernels/cuda/linear/w8a8.cuh"

namespace nibble::kernels::cuda {

template <W8Kind kKind, const auto& kTiles, bool kSiluMul, size_t... I>
std::vector<const void*> W8KernelsFor(std::index_sequence<I...> /*tiles*/) {
  return {reinterpret_cast<const void*>(
      &W8a8<W8Kernel<kKind, kTiles[I], kSiluMul>>)...};
}

// kTiles: what W8Tiles gives for the kind, or kW8SiluMulTiles for those of
// gate/up weights.
template <W8Kind kKind, const auto& kTiles, bool kSiluMul = false>
std::vector<const void*> MakeW8Kernels() {
  return W8KernelsFor<kKind, kTiles, kSiluMul>(
      std::make_index_sequence<std::size(kTiles)>());
}

}  // namespace nibble::kernels::cuda
