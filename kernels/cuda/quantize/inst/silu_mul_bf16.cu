#include "kernels/cuda/quantize/quantize.cuh"

namespace nibble::kernels::cuda {

QuantizeKernels SiluMulKernelsBf16() {
  return MakeQuantizeKernels<QuantizeOp::kSiluMul, __nv_bfloat16>();
}

}  // namespace nibble::kernels::cuda
