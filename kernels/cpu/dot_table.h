// Makes a target's table of kernels out of its template.
#pragma once

#include "base/check.h"
#include "kernels/cpu/dot.h"

namespace nibble::kernels::cpu {

// Maker::For<kFormat>() is the DotKernels of the PackedFormat of kFormat.
template <typename Maker>
DotKernels MakeDotKernels(QuantFormat format) {
  switch (format) {
    case QuantFormat::kQ4_0:
      return Maker::template For<QuantFormat::kQ4_0>();
    case QuantFormat::kQ4_1:
      return Maker::template For<QuantFormat::kQ4_1>();
    case QuantFormat::kQ5_0:
      return Maker::template For<QuantFormat::kQ5_0>();
    case QuantFormat::kQ5_1:
      return Maker::template For<QuantFormat::kQ5_1>();
    case QuantFormat::kQ8_0:
      return Maker::template For<QuantFormat::kQ8_0>();
    case QuantFormat::kQ4_K:
      return Maker::template For<QuantFormat::kQ4_K>();
    case QuantFormat::kQ5_K:
      return Maker::template For<QuantFormat::kQ5_K>();
    case QuantFormat::kQ6_K:
      return Maker::template For<QuantFormat::kQ6_K>();
    case QuantFormat::kF32:
    case QuantFormat::kF16:
    case QuantFormat::kBF16:
    case QuantFormat::kInt4:
    case QuantFormat::kInt4Sym:
    case QuantFormat::kAwq:
    case QuantFormat::kGptq:
    case QuantFormat::kMxfp4:
    case QuantFormat::kNvfp4:
      break;
  }
  NIBBLE_CHECK(false);
  return {};
}

}  // namespace nibble::kernels::cpu
