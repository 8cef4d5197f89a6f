#include "kernels/cuda/quantize/quantize.cuh"

namespace nibble::kernels::cuda {

QuantizeKernels AddNormKernelsF32() {
  return MakeQuantizeKernels<QuantizeOp::kAddNorm, float>();
}

}  // namespace nibble::kernels::cuda
