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
// Waits until the phase of this parity has ended.
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

// The same address in the shared memory of CTA `rank` of the cluster.
__device__ __forceinline__ uint32_t InCta(uint32_t shared, uint32_t rank) {
  uint32_t r;
  asm("mapa.shared::cluster.u32 %0,%1,%2;" : "=r"(r) : "r"(shared), "r"(rank));
  return r;
}

__device__ __forceinline__ void ClusterArrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void ClusterWait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
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
// `bytes` contiguous bytes; a multiple of 16, as both addresses.
__device__ __forceinline__ void BulkCopy(uint32_t to, const void* from,
                                         uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0],[%1],%2,[%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
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
