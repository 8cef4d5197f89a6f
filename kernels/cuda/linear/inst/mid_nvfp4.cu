#include "kernels/cuda/linear/inst/mid_kernels.cuh"

namespace nibble::kernels::cuda {

MidKernels MidNvfp4() {
  return MakeMidKernels<W4Code::kE2m1, W4Scale::kE4m3, 16>();
}

}  // namespace nibble::kernels::cuda
