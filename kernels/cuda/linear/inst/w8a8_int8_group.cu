#include "kernels/cuda/linear/inst/w8a8_kernels.cuh"

namespace nibble::kernels::cuda {

std::vector<const void*> W8Int8GroupKernels() {
  return MakeW8Kernels<W8Kind::kInt8Group, kW8GroupTiles>();
}

}  // namespace nibble::kernels::cuda
