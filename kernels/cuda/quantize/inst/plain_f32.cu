#include "kernels/cuda/quantize/quantize.cuh"

namespace nibble::kernels::cuda {

QuantizeKernels PlainKernelsF32() {
  return MakeQuantizeKernels<QuantizeOp::kPlain, float>();
}

}  // namespace nibble::kernels::cuda
