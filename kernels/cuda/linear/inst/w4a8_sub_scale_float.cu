#include "kernels/cuda/linear/inst/w4a8_kernels.cuh"

namespace nibble::kernels::cuda {

std::vector<const void*> W4a8SubScaleFloatKernels() {
  return MakeW4a8Kernels<W4a8Format{W4a8Kind::kSubScaleFloat, 32},
                         kW4a8DrainColumns>();
}

}  // namespace nibble::kernels::cuda
