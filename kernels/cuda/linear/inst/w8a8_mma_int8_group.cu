#include "kernels/cuda/linear/inst/w8a8_mma_kernels.cuh"

namespace nibble::kernels::cuda {

std::vector<const void*> W8MmaInt8GroupKernels() {
  return MakeW8MmaKernels<W8Kind::kInt8Group>();
}

}  // namespace nibble::kernels::cuda
