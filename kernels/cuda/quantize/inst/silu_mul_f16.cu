#include "kernels/cuda/quantize/quantize.cuh"

namespace nibble::kernels::cuda {

QuantizeKernels SiluMulKernelsF16() {
  return MakeQuantizeKernels<QuantizeOp::kSiluMul, __half>();
}

}  // namespace nibble::kernels::cuda
