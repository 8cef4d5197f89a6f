#include "kernels/cuda/linear/inst/w8a8_mma_kernels.cuh"

namespace nibble::kernels::cuda {

std::vector<const void*> W8MmaInt8Kernels() {
  return MakeW8MmaKernels<W8Kind::kInt8>();
}

}  // namespace nibble::kernels::cuda
