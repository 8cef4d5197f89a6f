#include "kernels/cuda/quantize/quantize.cuh"

namespace nibble::kernels::cuda {

QuantizeKernels PlainKernelsBf16() {
  return MakeQuantizeKernels<QuantizeOp::kPlain, __nv_bfloat16>();
}

}  // namespace nibble::kernels::cuda
