#include "kernels/cuda/linear/inst/w4a8_kernels.cuh"

namespace nibble::kernels::cuda {

std::vector<const void*> W4a8E4m3Group128Kernels() {
  return MakeW4a8Kernels<W4a8Format{W4a8Kind::kE4m3, 128}, kW4a8DrainColumns>();
}

}  // namespace nibble::kernels::cuda
