#include "kernels/cuda/linear/inst/w8a8_kernels.cuh"

namespace nibble::kernels::cuda {

std::vector<const void*> W8SiluMulE4m3FastKernels() {
  return MakeW8Kernels<W8Kind::kE4m3Fast, kW8SiluMulTiles, true>();
}

}  // namespace nibble::kernels::cuda
