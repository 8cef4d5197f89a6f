// Instantiates the W8A8 kernel for every device for one kind.
#pragma once

#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "kernels/cuda/linear/inst/w8a8_mma_kernels.h"
#include "kernels/cuda/linear/w8a8_mma.cuh"

namespace nibble::kernels::cuda {

template <W8Kind kKind, size_t... I>
std::vector<const void*> W8MmaKernelsFor(std::index_sequence<I...> /*tiles*/) {
  return {reinterpret_cast<const void*>(
      &W8a8Mma<W8MmaKernel<kKind, kW8MmaTiles[I]>>)...};
}

template <W8Kind kKind>
std::vector<const void*> MakeW8MmaKernels() {
  return W8MmaKernelsFor<kKind>(
      std::make_index_sequence<std::size(kW8MmaTiles)>());
}

}  // namespace nibble::kernels::cuda
