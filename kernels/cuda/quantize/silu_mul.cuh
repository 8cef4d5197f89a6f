// silu(gate) * up, as everything that ends in it computes it.
#pragma once

namespace nibble::kernels::cuda {

// silu(gate) * up. Where e^-gate overflows the reciprocal is zero; what is
// flushed to zero is far below kLeastMax.
__device__ __forceinline__ float SiluMul(float gate, float up) {
  constexpr float kLog2E = 1.44269504f;
  float e, reciprocal;
  asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(e) : "f"(gate * -kLog2E));
  asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(reciprocal) : "f"(1.0f + e));
  return __fmul_rn(__fmul_rn(gate, reciprocal), up);
}

}  // namespace nibble::kernels::cuda
