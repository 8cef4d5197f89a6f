#include "kernels/cuda/linear/inst/small_kernels.cuh"

namespace nibble::kernels::cuda {

SmallKernels SmallInt4Zero128() {
  return MakeSmallKernels<W4Code::kInt4, W4Scale::kScaleZero, 128>();
}

}  // namespace nibble::kernels::cuda
