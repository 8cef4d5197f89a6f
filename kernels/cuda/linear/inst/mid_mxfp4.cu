#include "kernels/cuda/linear/inst/mid_kernels.cuh"

namespace nibble::kernels::cuda {

MidKernels MidMxfp4() {
  return MakeMidKernels<W4Code::kE2m1, W4Scale::kE8m0, 32>();
}

}  // namespace nibble::kernels::cuda
