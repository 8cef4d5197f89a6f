// Barriers in shared memory that count arrivals and bytes, tensor copies that
// report to them, and what CTAs of a cluster do to each other (PTX ISA,
// "mbarrier", "cp.async.bulk.tensor"). Compute capability 9.0.
//
// The forms without qualifiers are meant: those with .cluster scope emit a
// fence of the whole GPU and drop L1 at every use.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace nibble::kernels::cuda {

__device__ __forceinline__ void BarrierInit(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(barrier),
               "r"(arrivals)
               : "memory");
}
// After the last BarrierInit: shows them to tensor copies and to the cluster.
__device__ __forceinline__ void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void BarrierArrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(barrier)
               : "memory");
}
// Arrives, and adds to the bytes that the phase waits for.
__device__ __forceinline__ void BarrierArriveExpect(uint32_t barrier,
                                                    uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(barrier),
      "r"(bytes)
      : "memory");
}
// Whether the phase of this parity has ended.
__device__ __forceinline__ bool BarrierTest(uint32_t barrier, uint32_t parity) {
  uint32_t ended;
  asm volatile(
      "{.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p,[%1],%2;\n"
      "selp.u32 %0,1,0,p;}"
      : "=r"(ended)
      : "r"(barrier), "r"(parity)
      : "memory");
  return ended != 0;
}
__device__ __forceinline__ void BarrierWait(uint32_t barrier, uint32_t parity) {
  uint32_t ended;
  do {
    asm volatile(
        "{.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p,[%1],%2;\n"
        "selp.u32 %0,1,0,p;}"
        : "=r"(ended)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (ended == 0);
}

// Arrives at BarrierOf's barrier without waiting for it.
__device__ __forceinline__ void BarrierArriveOf(int id, int threads) {
  asm volatile("bar.arrive %0,%1;" ::"r"(id), "r"(threads) : "memory");
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

// A lane's share of a packed block, as one group of copies: 16 bytes of every
// 512 of kCodeBytes = 2,048, and 16 behind them.
template <int kCodeBytes>
__device__ __forceinline__ void CopyBlockAsync(uint32_t shared, const void* p,
                                               bool codes, bool scales) {
  static_assert(kCodeBytes == 2048);
  asm volatile(
      "{.reg .pred p,q;\n"
      "setp.ne.b32 p,%2,0;\n"
      "setp.ne.b32 q,%3,0;\n"
      "@p cp.async.cg.shared.global [%0],[%1],16;\n"
      "@p cp.async.cg.shared.global [%0+512],[%1+512],16;\n"
      "@p cp.async.cg.shared.global [%0+1024],[%1+1024],16;\n"
      "@p cp.async.cg.shared.global [%0+1536],[%1+1536],16;\n"
      "@q cp.async.cg.shared.global [%0+2048],[%1+2048],16;\n"
      "cp.async.commit_group;}" ::"r"(shared),
      "l"(p), "r"(static_cast<int>(codes)), "r"(static_cast<int>(scales))
      : "memory");
}

// The same address in the shared memory of CTA `rank` of the cluster.
__device__ __forceinline__ uint32_t InCta(uint32_t shared, uint32_t rank) {
  uint32_t r;
  asm("mapa.shared::cluster.u32 %0,%1,%2;" : "=r"(r) : "r"(shared), "r"(rank));
  return r;
}
__device__ __forceinline__ void BarrierArriveInCluster(uint32_t in_cta) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _,[%0];" ::"r"(in_cta)
               : "memory");
}

__device__ __forceinline__ void ClusterArrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void ClusterWait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// 16 bytes to the shared memory of a CTA of the cluster, counted there.
__device__ __forceinline__ void StoreAsync16(uint32_t in_cta, float4 v,
                                             uint32_t barrier_in_cta) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
      "[%0],{%1,%2,%3,%4},[%5];" ::"r"(in_cta),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier_in_cta)
      : "memory");
}

__device__ __forceinline__ void PrefetchTensorMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// A box whose first element is (x, y), x the contiguous coordinate.
__device__ __forceinline__ void TensorCopy(uint32_t to, const CUtensorMap* map,
                                           int x, int y, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::"
      "bytes [%0],[%1,{%2,%3}],[%4];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}
// To the same place, and reported to the same barrier, of the CTAs in `mask`.
__device__ __forceinline__ void TensorCopyToMany(uint32_t to,
                                                 const CUtensorMap* map, int x,
                                                 int y, uint32_t barrier,
                                                 uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::"
      "bytes.multicast::cluster [%0],[%1,{%2,%3}],[%4],%5;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(mask)
      : "memory");
}
// `bytes` contiguous bytes; a multiple of 16, as both addresses.
__device__ __forceinline__ void BulkCopy(uint32_t to, const void* from,
                                         uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0],[%1],%2,[%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// Shows this thread's stores to shared memory to wgmma and tensor copies. Waits
// for all cp.async of the thread: not for threads that have any.
__device__ __forceinline__ void FenceSharedForAsync() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The inverse of LdMatrix4.
__device__ __forceinline__ void StMatrix4(uint32_t address,
                                          const uint32_t (&r)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0],{%1,%2,%3,%4};" ::"r"(
          address),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}

// Moves registers between the warpgroups of a CTA; each warp of a warpgroup.
template <int kRegisters>
__device__ __forceinline__ void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace nibble::kernels::cuda
