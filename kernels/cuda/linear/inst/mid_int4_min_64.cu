#include "kernels/cuda/linear/inst/mid_kernels.cuh"

namespace nibble::kernels::cuda {

MidKernels MidInt4Min64() {
  return MakeMidKernels<W4Code::kInt4, W4Scale::kScaleMin, 64>();
}

}  // namespace nibble::kernels::cuda
