#include "kernels/cuda/linear/inst/w8a8_mma_kernels.cuh"

namespace nibble::kernels::cuda {

std::vector<const void*> W8MmaE4m3FastKernels() {
  return MakeW8MmaKernels<W8Kind::kE4m3Fast>();
}

}  // namespace nibble::kernels::cuda
