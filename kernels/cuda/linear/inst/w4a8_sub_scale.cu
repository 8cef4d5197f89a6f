#include "kernels/cuda/linear/inst/w4a8_kernels.cuh"

namespace nibble::kernels::cuda {

std::vector<const void*> W4a8SubScaleKernels() {
  return MakeW4a8Kernels<W4a8Format{W4a8Kind::kSubScale, 32},
                         kW4a8SubScaleColumns>();
}

}  // namespace nibble::kernels::cuda
