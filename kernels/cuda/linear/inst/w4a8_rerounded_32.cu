#include "kernels/cuda/linear/inst/w4a8_kernels.cuh"

namespace nibble::kernels::cuda {

std::vector<const void*> W4a8Rerounded32Kernels() {
  return MakeW4a8Kernels<W4a8Format{W4a8Kind::kRerounded, 32},
                         kW4a8ChainColumns>();
}

}  // namespace nibble::kernels::cuda
