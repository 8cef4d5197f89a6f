// Instantiates the W4A8 kernel for one format.
#pragma once

#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "kernels/cuda/linear/inst/w4a8_kernels.h"
#include "kernels/cuda/linear/w4a8.cuh"

namespace nibble::kernels::cuda {

template <W4a8Format kFormat, const auto& kColumns, size_t... I>
std::vector<const void*> W4a8KernelsFor(std::index_sequence<I...> /*columns*/) {
  return {reinterpret_cast<const void*>(
      &W4a8<W4a8Kernel<kFormat, kColumns[I]>>)...};
}

// kColumns: what W4a8Columns gives for the format.
template <W4a8Format kFormat, const auto& kColumns>
std::vector<const void*> MakeW4a8Kernels() {
  return W4a8KernelsFor<kFormat, kColumns>(
      std::make_index_sequence<std::size(kColumns)>());
}

}  // namespace nibble::kernels::cuda
