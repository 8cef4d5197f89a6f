#include "kernels/cuda/quantize/quantize.cuh"

namespace nibble::kernels::cuda {

QuantizeKernels NormKernelsBf16() {
  return MakeQuantizeKernels<QuantizeOp::kNorm, __nv_bfloat16>();
}

}  // namespace nibble::kernels::cuda
