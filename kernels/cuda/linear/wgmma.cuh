// Warpgroup matrix products of Hopper (PTX ISA, "wgmma"), A from registers.
// Compiled for compute capability 9.0a only.
#pragma once

#include "kernels/cuda/linear/mma.cuh"
#include "kernels/cuda/linear/wgmma_operands.cuh"

namespace nibble::kernels::cuda {

// Orders register accesses of the warpgroup before the next wgmma.
__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending of the warpgroup's groups are in flight.
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from reading accumulators before the wait above it.
template <int kTiles>
__device__ __forceinline__ void HoldAccumulators(float (&d)[kTiles][4]) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    asm volatile(""
                 : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]),
                   "+f"(d[i][3])::"memory");
  }
}
// Has an A operand in its registers here.
__device__ __forceinline__ void HoldOperand(uint32_t (&a)[4]) {
  asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}

// The shared memory descriptor of a B operand, [columns][64 elements of k] of
// 16 bits, in the 128-byte swizzle that a tensor copy writes: eights of columns
// are 1,024 bytes apart, and each operand starts at a multiple of that. The
// next step of k = 16 is kDescriptorStep further.
__device__ __forceinline__ uint64_t SwizzledOperand(uint32_t shared) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightsApart = uint64_t{1024 >> 4} << 32;
  constexpr uint64_t kUnused = uint64_t{1} << 16;
  return (shared >> 4) | kUnused | kEightsApart | kSwizzle128;
}
inline constexpr uint64_t kDescriptorStep = 32 >> 4;

// What the instruction calls the types of D, A and B.
template <XType X>
struct WgmmaTypes {
  static constexpr char kName[] = "f32.bf16.bf16";
};
template <>
struct WgmmaTypes<XType::kF16> {
  static constexpr char kName[] = "f32.f16.f16";
};

// D[64, 8 * kTiles] = A[64, 16] B[16, 8 * kTiles] + (add ? D : 0). The
// fragments of A and D are those of mma.m16n8k16, warp w of the warpgroup
// holding rows 16 w .. 16 w + 15. Runs until waited for; D and A must be left
// alone meanwhile.
template <XType X>
__device__ __forceinline__ void Wgmma(float (&d)[4][4], const uint32_t (&a)[4],
                                      uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred p;\nsetp.ne.b32 p,%21,0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.%22 {" NIBBLE_WGMMA_NUMBERS_16
      "},"
      "{%16,%17,%18,%19},%20,p,1,1,0;}"
      : NIBBLE_WGMMA_TILES_4("+f", d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
        "r"(static_cast<int>(add)), "C"(WgmmaTypes<X>::kName));
}
template <XType X>
__device__ __forceinline__ void Wgmma(float (&d)[8][4], const uint32_t (&a)[4],
                                      uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred p;\nsetp.ne.b32 p,%37,0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.%38 {" NIBBLE_WGMMA_NUMBERS_32
      "},"
      "{%32,%33,%34,%35},%36,p,1,1,0;}"
      : NIBBLE_WGMMA_TILES_8("+f", d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
        "r"(static_cast<int>(add)), "C"(WgmmaTypes<X>::kName));
}
template <XType X>
__device__ __forceinline__ void Wgmma(float (&d)[12][4], const uint32_t (&a)[4],
                                      uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred p;\nsetp.ne.b32 p,%53,0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k16.%54 {" NIBBLE_WGMMA_NUMBERS_48
      "},"
      "{%48,%49,%50,%51},%52,p,1,1,0;}"
      : NIBBLE_WGMMA_TILES_8("+f", d, 0), NIBBLE_WGMMA_TILES_4("+f", d, 8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
        "r"(static_cast<int>(add)), "C"(WgmmaTypes<X>::kName));
}
template <XType X>
__device__ __forceinline__ void Wgmma(float (&d)[16][4], const uint32_t (&a)[4],
                                      uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred p;\nsetp.ne.b32 p,%69,0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.%70 {" NIBBLE_WGMMA_NUMBERS_64
      "},"
      "{%64,%65,%66,%67},%68,p,1,1,0;}"
      : NIBBLE_WGMMA_TILES_16("+f", d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
        "r"(static_cast<int>(add)), "C"(WgmmaTypes<X>::kName));
}

}  // namespace nibble::kernels::cuda
