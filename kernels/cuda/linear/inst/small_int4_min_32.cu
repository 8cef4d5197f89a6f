#include "kernels/cuda/linear/inst/small_kernels.cuh"

namespace nibble::kernels::cuda {

SmallKernels SmallInt4Min32() {
  return MakeSmallKernels<W4Code::kInt4, W4Scale::kScaleMin, 32>();
}

}  // namespace nibble::kernels::cuda
