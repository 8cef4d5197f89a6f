#include "kernels/cuda/linear/inst/mid_kernels.cuh"

namespace nibble::kernels::cuda {

MidKernels MidInt4Scale128() {
  return MakeMidKernels<W4Code::kInt4, W4Scale::kScale, 128>();
}

}  // namespace nibble::kernels::cuda
