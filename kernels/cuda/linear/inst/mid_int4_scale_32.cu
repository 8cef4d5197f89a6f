#include "kernels/cuda/linear/inst/mid_kernels.cuh"

namespace nibble::kernels::cuda {

MidKernels MidInt4Scale32() {
  return MakeMidKernels<W4Code::kInt4, W4Scale::kScale, 32>();
}

}  // namespace nibble::kernels::cuda
