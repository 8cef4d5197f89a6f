#include "kernels/cuda/linear/inst/small_kernels.cuh"

namespace nibble::kernels::cuda {

SmallKernels SmallQ4K() {
  return MakeSmallKernels<W4Code::kInt4, W4Scale::kQ4K, 32>();
}

}  // namespace nibble::kernels::cuda
