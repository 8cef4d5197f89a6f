// Instantiates the kernel for few rows for one format.
#pragma once

#include <cstddef>
#include <utility>

#include "kernels/cuda/linear/inst/small_kernels.h"
#include "kernels/cuda/linear/w4a16_small.cuh"

namespace nibble::kernels::cuda {

template <typename F, XType X, size_t... I>
auto SmallKernelsFor(std::index_sequence<I...> /*variants*/) {
  return std::array{reinterpret_cast<const void*>(
      &W4a16Small<F, X, kSmallVariants[I].nt, kSmallVariants[I].stages,
                  kSmallVariants[I].source, kSmallVariants[I].cluster>)...};
}

template <W4Code kCode, W4Scale kScale, int kGroup>
SmallKernels MakeSmallKernels() {
  using Format = W4Format<kCode, kScale, kGroup>;
  constexpr std::make_index_sequence<kSmallVariants.size()> kAll;
  return {.bf16 = SmallKernelsFor<Format, XType::kBF16>(kAll),
          .f16 = SmallKernelsFor<Format, XType::kF16>(kAll)};
}

}  // namespace nibble::kernels::cuda
