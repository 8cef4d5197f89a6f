#include "kernels/cuda/linear/inst/w4a8_kernels.cuh"

namespace nibble::kernels::cuda {

std::vector<const void*> W4a8Min128Kernels() {
  return MakeW4a8Kernels<W4a8Format{W4a8Kind::kScaleMin, 128},
                         kW4a8DrainColumns>();
}

}  // namespace nibble::kernels::cuda
