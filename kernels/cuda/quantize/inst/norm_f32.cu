#include "kernels/cuda/quantize/quantize.cuh"

namespace nibble::kernels::cuda {

QuantizeKernels NormKernelsF32() {
  return MakeQuantizeKernels<QuantizeOp::kNorm, float>();
}

}  // namespace nibble::kernels::cuda
