#include "kernels/cuda/linear/inst/w8a8_kernels.cuh"

namespace nibble::kernels::cuda {

std::vector<const void*> W8SiluMulInt8Kernels() {
  return MakeW8Kernels<W8Kind::kInt8, kW8SiluMulTiles, true>();
}

}  // namespace nibble::kernels::cuda
