#include "kernels/cuda/linear/inst/small_kernels.cuh"

namespace nibble::kernels::cuda {

SmallKernels SmallInt4Scale128() {
  return MakeSmallKernels<W4Code::kInt4, W4Scale::kScale, 128>();
}

}  // namespace nibble::kernels::cuda
