// The kernels for many rows as compiled: one file and one function a format.
#pragma once

#include <array>

#include "kernels/cuda/linear/w4_layout.h"
#include "kernels/cuda/linear/w4a16_mid.h"
#include "kernels/tensor.h"

namespace nibble::kernels::cuda {

// The __global__ functions of one format and one type of x. By value.
struct MidKernelsOf {
  // [variant of kMidVariants]; null where the format has it not.
  std::array<const void*, kMidVariants.size()> multiply;
  const void* prepare;  // null where x needs nothing
};
struct MidKernels {
  MidKernelsOf bf16, f16;
};

MidKernels MidInt4Scale32();
MidKernels MidInt4Scale64();
MidKernels MidInt4Scale128();
MidKernels MidInt4Min32();
MidKernels MidInt4Min64();
MidKernels MidInt4Min128();
MidKernels MidInt4Zero32();
MidKernels MidInt4Zero64();
MidKernels MidInt4Zero128();
MidKernels MidQ4K();
MidKernels MidMxfp4();
MidKernels MidNvfp4();

// The kernel for a layout, a type of x (kBF16 or kF16) and a variant of
// kMidVariants, and the one that prepares x; null where they are not compiled.
// Thread-safe.
const void* MidKernel(const W4Layout& layout, DType x_dtype,
                      const MidVariant& variant);
const void* PrepareKernelOf(const W4Layout& layout, DType x_dtype);

}  // namespace nibble::kernels::cuda
