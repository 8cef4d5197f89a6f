// The PTX that the linear kernels are made of, one function an instruction.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace nibble::kernels::cuda {

// The 16-bit type of activations.
enum class XType : uint8_t { kBF16, kF16 };

// D[16, 8] += A[16, 16] B[16, 8], 16-bit inputs, FP32 sums. Not volatile: the
// compiler may let independent chains take turns.
template <XType X>
__device__ __forceinline__ void Mma(float (&d)[4], const uint32_t (&a)[4],
                                    uint32_t b0, uint32_t b1) {
  if constexpr (X == XType::kBF16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row
// l % 8 of matrix l / 8.
__device__ __forceinline__ void LdMatrix4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// 16 bytes from global to shared memory, past L1, without a register between.
__device__ __forceinline__ void CopyAsync16(uint32_t shared, const void* p) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(shared), "l"(p)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kPending of this thread's groups are in flight.
template <int kPending>
__device__ __forceinline__ void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// A barrier of `threads` threads; id 0 is that of __syncthreads.
__device__ __forceinline__ void BarrierOf(int id, int threads) {
  asm volatile("bar.sync %0,%1;" ::"r"(id), "r"(threads) : "memory");
}

// Programmatic dependent launch (compute capability 9.0): waits for the end
// of the kernels ahead; lets the kernel behind start.
__device__ __forceinline__ void WaitForDependency() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void LetDependentsStart() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// 16 bytes from global memory, or zeros; a predicate instead of a branch.
__device__ __forceinline__ uint4 LoadGlobal16If(bool there, const void* p) {
  uint4 v;
  asm volatile(
      "{.reg .pred p;\n"
      "setp.ne.b32 p,%5,0;\n"
      "mov.b32 %0,0;\nmov.b32 %1,0;\nmov.b32 %2,0;\nmov.b32 %3,0;\n"
      "@p ld.global.nc.v4.b32 {%0,%1,%2,%3},[%4];}"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p), "r"(static_cast<int>(there)));
  return v;
}

__device__ __forceinline__ uint4 LoadShared16(const void* p) {
  return *static_cast<const uint4*>(p);
}

// After the copies that wrote it were waited for.
__device__ __forceinline__ uint4 LoadShared16At(uint32_t shared) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3},[%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(shared)
               : "memory");
  return v;
}

// Two ones.
template <XType X>
constexpr uint32_t Ones() {
  return X == XType::kBF16 ? 0x3F803F80u : 0x3C003C00u;
}

}  // namespace nibble::kernels::cuda
