// The end of a W4A16 kernel: from the FP32 total of an output to memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/linear/w4_output.h"

namespace nibble::kernels::cuda {

// y[at], in column `column`, from the sum of all slices, already times
// tensor_scale. The operations are spelled out, so that no compiler fuses them
// in one kernel and not in another.
__device__ __forceinline__ void Finish(const Output& out, int64_t at,
                                       int column, float v) {
  if (out.bias != nullptr) v = __fadd_rn(v, out.bias[column]);
  const bool add = out.epilogue == W4Epilogue::kAdd;
  if (out.dtype == DType::kBF16) {
    auto* y = static_cast<__nv_bfloat16*>(out.y) + at;
    if (add) v = __fadd_rn(v, __bfloat162float(*y));
    *y = __float2bfloat16_rn(v);
  } else if (out.dtype == DType::kF16) {
    auto* y = static_cast<__half*>(out.y) + at;
    if (add) v = __fadd_rn(v, __half2float(*y));
    *y = __float2half_rn(v);
  } else {
    auto* y = static_cast<float*>(out.y) + at;
    *y = add ? __fadd_rn(v, *y) : v;
  }
}

// silu(gate) * up, of kSiluMul.
__device__ __forceinline__ float SiluMul(float gate, float up) {
  return __fmul_rn(__fdividef(gate, __fadd_rn(1.0f, expf(-gate))), up);
}

}  // namespace nibble::kernels::cuda
