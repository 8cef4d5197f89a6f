// Matrix products of a warp with 8-bit operands (PTX ISA, "mma"): INT8 from
// compute capability 8.0 on, FP8 from 8.9 on.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/w8a8.h"

namespace nibble::kernels::cuda {

// What the instruction is called for a kind.
template <W8Kind kKind>
struct MmaOf {
  static constexpr char kTypes[] = "f32.e4m3.e4m3.f32";
};
template <>
struct MmaOf<W8Kind::kInt8> {
  static constexpr char kTypes[] = "s32.s8.s8.s32";
};
template <>
struct MmaOf<W8Kind::kInt8Group> : MmaOf<W8Kind::kInt8> {};

// D[16, 8] += A[16, 32] B[8, 32]^T; D is INT32, which wraps around, or the bits
// of FP32. Not volatile: the compiler may let independent chains take turns.
template <W8Kind kKind>
__device__ __forceinline__ void Mma8(uint32_t (&d)[4], const uint32_t (&a)[4],
                                     uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.%10 "
      "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1),
        "C"(MmaOf<kKind>::kTypes));
}

}  // namespace nibble::kernels::cuda
