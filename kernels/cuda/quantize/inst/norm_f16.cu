#include "kernels/cuda/quantize/quantize.cuh"

namespace nibble::kernels::cuda {

QuantizeKernels NormKernelsF16() {
  return MakeQuantizeKernels<QuantizeOp::kNorm, __half>();
}

}  // namespace nibble::kernels::cuda
