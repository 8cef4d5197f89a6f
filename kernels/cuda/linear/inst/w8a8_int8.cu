#include "kernels/cuda/linear/inst/w8a8_kernels.cuh"

namespace nibble::kernels::cuda {

std::vector<const void*> W8Int8Kernels() {
  return MakeW8Kernels<W8Kind::kInt8, kW8PlainTiles>();
}

}  // namespace nibble::kernels::cuda
