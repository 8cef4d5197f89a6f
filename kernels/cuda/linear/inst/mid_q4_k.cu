#include "kernels/cuda/linear/inst/mid_kernels.cuh"

namespace nibble::kernels::cuda {

MidKernels MidQ4K() {
  return MakeMidKernels<W4Code::kInt4, W4Scale::kQ4K, 32>();
}

}  // namespace nibble::kernels::cuda
