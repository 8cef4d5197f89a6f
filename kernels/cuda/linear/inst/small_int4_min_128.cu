#include "kernels/cuda/linear/inst/small_kernels.cuh"

namespace nibble::kernels::cuda {

SmallKernels SmallInt4Min128() {
  return MakeSmallKernels<W4Code::kInt4, W4Scale::kScaleMin, 128>();
}

}  // namespace nibble::kernels::cuda
