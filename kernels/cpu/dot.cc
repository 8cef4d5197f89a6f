#include "kernels/cpu/dot.h"

namespace nibble::kernels::cpu {

DotKernels DotKernelsFor(CpuTarget target, const PackedFormat& format) {
  switch (target) {
    case CpuTarget::kPortable:
      return PortableDotKernels(format);
    case CpuTarget::kNeon:
      return NeonDotKernels(format);
    case CpuTarget::kNeonDotprod:
      return NeonDotprodDotKernels(format);
    case CpuTarget::kNeonI8mm:
      return NeonI8mmDotKernels(format);
    case CpuTarget::kAvx2:
      return Avx2DotKernels(format);
    case CpuTarget::kAvxVnni:
      return AvxVnniDotKernels(format);
    case CpuTarget::kAvx512Vnni:
      return Avx512VnniDotKernels(format);
  }
  return {};
}

}  // namespace nibble::kernels::cpu
