// Makes a target's table of kernels out of its template.
#pragma once

#include <cstddef>
#include <utility>

#include "base/check.h"
#include "kernels/cpu/dot.h"
#include "kernels/cpu/packed_format.h"

namespace nibble::kernels::cpu {

// Maker::For<kFormat>() makes the kernels of one of kPackedFormats.
template <typename Maker>
DotKernels MakeDotKernels(const PackedFormat& format) {
  DotKernels kernels;
  const auto make = [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    return ((format == kPackedFormats[kIndex] &&
             (kernels = Maker::template For<kPackedFormats[kIndex]>(), true)) ||
            ...);
  };
  NIBBLE_CHECK(make(std::make_index_sequence<kPackedFormats.size()>()));
  return kernels;
}

}  // namespace nibble::kernels::cpu
