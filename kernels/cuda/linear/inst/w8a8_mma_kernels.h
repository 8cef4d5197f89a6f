// The W8A8 kernels for every device as compiled: one file and one function a
// kind.
#pragma once

#include <vector>

#include "kernels/cuda/linear/w8a8_plan.h"

namespace nibble::kernels::cuda {

// The __global__ functions of one kind, in the order of kW8MmaTiles.
std::vector<const void*> W8MmaInt8Kernels();
std::vector<const void*> W8MmaE4m3Kernels();
std::vector<const void*> W8MmaE4m3FastKernels();
std::vector<const void*> W8MmaE4m3BlockKernels();
std::vector<const void*> W8MmaInt8GroupKernels();

// The kernel of a kind and one of these tiles. Thread-safe.
const void* W8MmaKernelOf(W8Kind kind, const W8Tile& tile);

}  // namespace nibble::kernels::cuda
