// The kernels for few rows as compiled: one file and one function a format.
#pragma once

#include <array>

#include "kernels/cuda/linear/w4_layout.h"
#include "kernels/cuda/linear/w4a16_small.h"
#include "kernels/tensor.h"

namespace nibble::kernels::cuda {

// The __global__ functions of one format, [variant of kSmallVariants]. By
// value.
struct SmallKernels {
  std::array<const void*, kSmallVariants.size()> bf16;
  std::array<const void*, kSmallVariants.size()> f16;
};

SmallKernels SmallInt4Scale32();
SmallKernels SmallInt4Scale64();
SmallKernels SmallInt4Scale128();
SmallKernels SmallInt4Min32();
SmallKernels SmallInt4Min64();
SmallKernels SmallInt4Min128();
SmallKernels SmallInt4Zero32();
SmallKernels SmallInt4Zero64();
SmallKernels SmallInt4Zero128();
SmallKernels SmallQ4K();
SmallKernels SmallMxfp4();
SmallKernels SmallNvfp4();

// The kernel for a layout, a type of x (kBF16 or kF16) and a variant of
// kSmallVariants; null for a layout that is not compiled. Thread-safe.
const void* SmallKernel(const W4Layout& layout, DType x_dtype,
                        const SmallVariant& variant);

}  // namespace nibble::kernels::cuda
