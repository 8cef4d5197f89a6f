// Instantiates the kernel for many rows for one format.
#pragma once

#include <cstddef>
#include <utility>

#include "kernels/cuda/linear/inst/mid_kernels.h"
#include "kernels/cuda/linear/w4a16_mid.cuh"
#include "kernels/cuda/linear/w4a16_prepare.cuh"

namespace nibble::kernels::cuda {

template <typename F, XType X, MidVariant kVariant>
const void* MidKernelFor() {
  if constexpr (kVariant.fused && F::group != 128) {
    return nullptr;
  } else {
    using Tile = MidTile<kVariant.columns, kVariant.depth, kVariant.fused>;
    return reinterpret_cast<const void*>(&W4a16Mid<F, X, Tile>);
  }
}

template <typename F, XType X, size_t... I>
MidKernelsOf MidKernelsFor(std::index_sequence<I...> /*variants*/) {
  MidKernelsOf kernels{{MidKernelFor<F, X, kMidVariants[I]>()...}, nullptr};
  if constexpr (kScalesX<X> || kNeedsSums<F>) {
    kernels.prepare = reinterpret_cast<const void*>(&W4a16Prepare<F, X>);
  }
  return kernels;
}

template <W4Code kCode, W4Scale kScale, int kGroup>
MidKernels MakeMidKernels() {
  using Format = W4Format<kCode, kScale, kGroup>;
  constexpr std::make_index_sequence<kMidVariants.size()> kAll;
  return {.bf16 = MidKernelsFor<Format, XType::kBF16>(kAll),
          .f16 = MidKernelsFor<Format, XType::kF16>(kAll)};
}

}  // namespace nibble::kernels::cuda
