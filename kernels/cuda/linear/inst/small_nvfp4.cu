#include "kernels/cuda/linear/inst/small_kernels.cuh"

namespace nibble::kernels::cuda {

SmallKernels SmallNvfp4() {
  return MakeSmallKernels<W4Code::kE2m1, W4Scale::kE4m3, 16>();
}

}  // namespace nibble::kernels::cuda
