// The W4A8 kernels as compiled: one file and one function a format.
#pragma once

#include <vector>

#include "kernels/cuda/linear/w4a8_plan.h"

namespace nibble::kernels::cuda {

// The __global__ functions of one format, in the order of W4a8Columns.
std::vector<const void*> W4a8Rerounded128Kernels();
std::vector<const void*> W4a8Rerounded32Kernels();
std::vector<const void*> W4a8Scale128Kernels();
std::vector<const void*> W4a8Scale32Kernels();
std::vector<const void*> W4a8Min128Kernels();
std::vector<const void*> W4a8Min32Kernels();
std::vector<const void*> W4a8SubScaleKernels();
std::vector<const void*> W4a8SubScaleSumsKernels();
std::vector<const void*> W4a8SubScaleFloatKernels();
std::vector<const void*> W4a8E4m3Group128Kernels();
std::vector<const void*> W4a8E4m3Group32Kernels();

// The kernel of a format and so many columns. Thread-safe.
const void* W4a8KernelOf(W4a8Format format, int columns);

}  // namespace nibble::kernels::cuda
