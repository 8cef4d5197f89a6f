#include "kernels/cuda/quantize/quantize.cuh"

namespace nibble::kernels::cuda {

QuantizeKernels SiluMulKernelsF32() {
  return MakeQuantizeKernels<QuantizeOp::kSiluMul, float>();
}

}  // namespace nibble::kernels::cuda
