#include "kernels/cuda/quantize/quantize.cuh"

namespace nibble::kernels::cuda {

QuantizeKernels AddNormKernelsF16() {
  return MakeQuantizeKernels<QuantizeOp::kAddNorm, __half>();
}

}  // namespace nibble::kernels::cuda
