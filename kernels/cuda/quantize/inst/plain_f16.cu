#include "kernels/cuda/quantize/quantize.cuh"

namespace nibble::kernels::cuda {

QuantizeKernels PlainKernelsF16() {
  return MakeQuantizeKernels<QuantizeOp::kPlain, __half>();
}

}  // namespace nibble::kernels::cuda
