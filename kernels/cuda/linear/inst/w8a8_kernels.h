// The W8A8 kernels as compiled: one file and one function a kind.
#pragma once

#include <vector>

#include "kernels/cuda/linear/w8a8_plan.h"

namespace nibble::kernels::cuda {

// The __global__ functions of one kind, in the order of W8Tiles.
std::vector<const void*> W8Int8Kernels();
std::vector<const void*> W8E4m3Kernels();
std::vector<const void*> W8E4m3FastKernels();
std::vector<const void*> W8E4m3BlockKernels();
std::vector<const void*> W8Int8GroupKernels();
// Those of gate/up weights, in the order of kW8SiluMulTiles.
std::vector<const void*> W8SiluMulInt8Kernels();
std::vector<const void*> W8SiluMulE4m3Kernels();
std::vector<const void*> W8SiluMulE4m3FastKernels();
std::vector<const void*> W8SiluMulE4m3BlockKernels();
std::vector<const void*> W8SiluMulInt8GroupKernels();

// The kernel of a kind and one of its tiles. Thread-safe.
const void* W8KernelOf(W8Kind kind, const W8Tile& tile);
const void* W8SiluMulKernelOf(W8Kind kind, const W8Tile& tile);

}  // namespace nibble::kernels::cuda
