// Warpgroup matrix products of 8-bit operands, both in shared memory (PTX ISA,
// "wgmma"). Compiled for compute capability 9.0a only.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/w8a8.h"
#include "kernels/cuda/linear/wgmma.cuh"

namespace nibble::kernels::cuda {

// Keeps the compiler from reading accumulators before the wait above it.
template <int kTiles>
__device__ __forceinline__ void HoldAccumulators(uint32_t (&d)[kTiles][4]) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    asm volatile(""
                 : "+r"(d[i][0]), "+r"(d[i][1]), "+r"(d[i][2]),
                   "+r"(d[i][3])::"memory");
  }
}

// What the instruction is called for a kind, and the factors of x and W that
// the integer form does not have.
template <W8Kind kKind>
struct WgmmaOf {
  static constexpr char kTypes[] = "f32.e4m3.e4m3";
  static constexpr char kFactors[] = ",1,1";
};
template <>
struct WgmmaOf<W8Kind::kInt8> {
  static constexpr char kTypes[] = "s32.s8.s8";
  static constexpr char kFactors[] = "";
};
template <>
struct WgmmaOf<W8Kind::kInt8Group> : WgmmaOf<W8Kind::kInt8> {};

// D[64, 8 * kTiles] = A[64, 32] B[8 * kTiles, 32]^T + (add ? D : 0), A and B by
// their descriptors (SwizzledOperand; the next step of k = 32 is
// kDescriptorStep further). D is INT32 or the bits of FP32; its fragments are
// those of mma.m16n8k32, warp w of the warpgroup holding rows 16 w .. 16 w
// + 15. Runs until waited for; D must be left alone meanwhile.
template <W8Kind kKind>
__device__ __forceinline__ void Wgmma8(uint32_t (&d)[4][4], uint64_t a,
                                       uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred p;\nsetp.ne.b32 p,%18,0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.%19 {" NIBBLE_WGMMA_NUMBERS_16
      "},"
      "%16,%17,p%20;}"
      : NIBBLE_WGMMA_TILES_4("+r", d, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "C"(WgmmaOf<kKind>::kTypes),
        "C"(WgmmaOf<kKind>::kFactors));
}
template <W8Kind kKind>
__device__ __forceinline__ void Wgmma8(uint32_t (&d)[8][4], uint64_t a,
                                       uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred p;\nsetp.ne.b32 p,%34,0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.%35 {" NIBBLE_WGMMA_NUMBERS_32
      "},"
      "%32,%33,p%36;}"
      : NIBBLE_WGMMA_TILES_8("+r", d, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "C"(WgmmaOf<kKind>::kTypes),
        "C"(WgmmaOf<kKind>::kFactors));
}
template <W8Kind kKind>
__device__ __forceinline__ void Wgmma8(uint32_t (&d)[16][4], uint64_t a,
                                       uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred p;\nsetp.ne.b32 p,%66,0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.%67 {" NIBBLE_WGMMA_NUMBERS_64
      "},"
      "%64,%65,p%68;}"
      : NIBBLE_WGMMA_TILES_16("+r", d, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "C"(WgmmaOf<kKind>::kTypes),
        "C"(WgmmaOf<kKind>::kFactors));
}
template <W8Kind kKind>
__device__ __forceinline__ void Wgmma8(uint32_t (&d)[20][4], uint64_t a,
                                       uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred p;\nsetp.ne.b32 p,%82,0;\n"
      "wgmma.mma_async.sync.aligned.m64n160k32.%83 {" NIBBLE_WGMMA_NUMBERS_80
      "},"
      "%80,%81,p%84;}"
      : NIBBLE_WGMMA_TILES_16("+r", d, 0), NIBBLE_WGMMA_TILES_4("+r", d, 16)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "C"(WgmmaOf<kKind>::kTypes),
        "C"(WgmmaOf<kKind>::kFactors));
}
template <W8Kind kKind>
__device__ __forceinline__ void Wgmma8(uint32_t (&d)[24][4], uint64_t a,
                                       uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred p;\nsetp.ne.b32 p,%98,0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k32.%99 {" NIBBLE_WGMMA_NUMBERS_96
      "},"
      "%96,%97,p%100;}"
      : NIBBLE_WGMMA_TILES_16("+r", d, 0), NIBBLE_WGMMA_TILES_8("+r", d, 16)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "C"(WgmmaOf<kKind>::kTypes),
        "C"(WgmmaOf<kKind>::kFactors));
}
template <W8Kind kKind>
__device__ __forceinline__ void Wgmma8(uint32_t (&d)[28][4], uint64_t a,
                                       uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred p;\nsetp.ne.b32 p,%114,0;\n"
      "wgmma.mma_async.sync.aligned.m64n224k32.%115 {" NIBBLE_WGMMA_NUMBERS_112
      "},"
      "%112,%113,p%116;}"
      : NIBBLE_WGMMA_TILES_16("+r", d, 0), NIBBLE_WGMMA_TILES_8("+r", d, 16),
        NIBBLE_WGMMA_TILES_4("+r", d, 24)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "C"(WgmmaOf<kKind>::kTypes),
        "C"(WgmmaOf<kKind>::kFactors));
}
template <W8Kind kKind>
__device__ __forceinline__ void Wgmma8(uint32_t (&d)[32][4], uint64_t a,
                                       uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred p;\nsetp.ne.b32 p,%130,0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k32.%131 {" NIBBLE_WGMMA_NUMBERS_128
      "},"
      "%128,%129,p%132;}"
      : NIBBLE_WGMMA_TILES_16("+r", d, 0), NIBBLE_WGMMA_TILES_16("+r", d, 16)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "C"(WgmmaOf<kKind>::kTypes),
        "C"(WgmmaOf<kKind>::kFactors));
}

}  // namespace nibble::kernels::cuda
