// What the CTAs of a cluster do to each other in the W4A16 kernel for few rows
// (PTX ISA, "barrier.cluster", "st.async"). Compute capability 9.0.
#pragma once

#include <cstdint>

namespace nibble::kernels::cuda {

// Whether the architecture being compiled for has clusters.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool kHasClusters = true;
#else
inline constexpr bool kHasClusters = false;
#endif

// The first half of a barrier that shows no memory: only that the CTA runs.
__device__ __forceinline__ void ClusterArriveRelaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

// Four or eight bytes to the shared memory of a CTA of the cluster, counted by
// a barrier there. An arrival with release at a barrier of the cluster would
// wait for the whole GPU's memory; counted bytes need none.
__device__ __forceinline__ void StoreAsync4(uint32_t in_cta, float v,
                                            uint32_t barrier_in_cta) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 "
      "[%0],%1,[%2];" ::"r"(in_cta),
      "f"(v), "r"(barrier_in_cta)
      : "memory");
}
__device__ __forceinline__ void StoreAsync8(uint32_t in_cta, float a, float b,
                                            uint32_t barrier_in_cta) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 "
      "[%0],{%1,%2},[%3];" ::"r"(in_cta),
      "f"(a), "f"(b), "r"(barrier_in_cta)
      : "memory");
}

}  // namespace nibble::kernels::cuda
