#include "kernels/cuda/quantize/quantize.cuh"

namespace nibble::kernels::cuda {

QuantizeKernels AddNormKernelsBf16() {
  return MakeQuantizeKernels<QuantizeOp::kAddNorm, __nv_bfloat16>();
}

}  // namespace nibble::kernels::cuda
