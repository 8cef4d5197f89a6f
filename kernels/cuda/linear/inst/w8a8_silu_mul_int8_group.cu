#include "kernels/cuda/linear/inst/w8a8_kernels.cuh"

namespace nibble::kernels::cuda {

std::vector<const void*> W8SiluMulInt8GroupKernels() {
  return MakeW8Kernels<W8Kind::kInt8Group, kW8SiluMulTiles, true>();
}

}  // namespace nibble::kernels::cuda
