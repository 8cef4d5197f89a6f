#include "kernels/cuda/linear/inst/small_kernels.cuh"

namespace nibble::kernels::cuda {

SmallKernels SmallInt4Zero32() {
  return MakeSmallKernels<W4Code::kInt4, W4Scale::kScaleZero, 32>();
}

}  // namespace nibble::kernels::cuda
