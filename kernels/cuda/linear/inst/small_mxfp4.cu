#include "kernels/cuda/linear/inst/small_kernels.cuh"

namespace nibble::kernels::cuda {

SmallKernels SmallMxfp4() {
  return MakeSmallKernels<W4Code::kE2m1, W4Scale::kE8m0, 32>();
}

}  // namespace nibble::kernels::cuda
