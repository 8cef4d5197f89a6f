// Warpgroup matrix products of 8-bit codes, weights as A from registers (PTX
// ISA, "wgmma"). Compiled for compute capability 9.0a only.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/wgmma_8bit.cuh"

namespace nibble::kernels::cuda {

// What codes of both operands are. Sums of kE4m3 are bits of FP32 numbers.
enum class W4a8Codes : uint8_t { kS8, kU8, kE4m3 };

// As WgmmaOf, of such codes.
template <W4a8Codes kCodes>
struct WgmmaCodes : WgmmaOf<W8Kind::kInt8> {};
template <>
struct WgmmaCodes<W4a8Codes::kE4m3> : WgmmaOf<W8Kind::kE4m3> {};
template <>
struct WgmmaCodes<W4a8Codes::kU8> {
  static constexpr char kTypes[] = "s32.u8.u8";
  static constexpr char kFactors[] = "";
};

// D[64, 8 * kTiles] = A[64, 32] B[8 * kTiles, 32]^T + (add ? D : 0): B by its
// descriptor (SwizzledOperand). Fragments of A and D
// are those of mma.m16n8k32, warp w of the warpgroup holding rows 16 w .. 16 w
// + 15. Runs until waited for; D and A must be left alone meanwhile.
template <W4a8Codes kCodes>
__device__ __forceinline__ void WgmmaPacked(uint32_t (&d)[4][4],
                                            const uint32_t (&a)[4], uint64_t b,
                                            bool add) {
  asm volatile(
      "{.reg .pred p;\nsetp.ne.b32 p,%21,0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.%22 "
      "{" NIBBLE_WGMMA_NUMBERS_16
      "},"
      "{%16,%17,%18,%19},%20,p%23;}"
      : NIBBLE_WGMMA_TILES_4("+r", d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
        "r"(static_cast<int>(add)), "C"(WgmmaCodes<kCodes>::kTypes),
        "C"(WgmmaCodes<kCodes>::kFactors));
}
template <W4a8Codes kCodes>
__device__ __forceinline__ void WgmmaPacked(uint32_t (&d)[8][4],
                                            const uint32_t (&a)[4], uint64_t b,
                                            bool add) {
  asm volatile(
      "{.reg .pred p;\nsetp.ne.b32 p,%37,0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.%38 "
      "{" NIBBLE_WGMMA_NUMBERS_32
      "},"
      "{%32,%33,%34,%35},%36,p%39;}"
      : NIBBLE_WGMMA_TILES_8("+r", d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
        "r"(static_cast<int>(add)), "C"(WgmmaCodes<kCodes>::kTypes),
        "C"(WgmmaCodes<kCodes>::kFactors));
}
template <W4a8Codes kCodes>
__device__ __forceinline__ void WgmmaPacked(uint32_t (&d)[12][4],
                                            const uint32_t (&a)[4], uint64_t b,
                                            bool add) {
  asm volatile(
      "{.reg .pred p;\nsetp.ne.b32 p,%53,0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k32.%54 "
      "{" NIBBLE_WGMMA_NUMBERS_48
      "},"
      "{%48,%49,%50,%51},%52,p%55;}"
      : NIBBLE_WGMMA_TILES_8("+r", d, 0), NIBBLE_WGMMA_TILES_4("+r", d, 8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
        "r"(static_cast<int>(add)), "C"(WgmmaCodes<kCodes>::kTypes),
        "C"(WgmmaCodes<kCodes>::kFactors));
}
template <W4a8Codes kCodes>
__device__ __forceinline__ void WgmmaPacked(uint32_t (&d)[16][4],
                                            const uint32_t (&a)[4], uint64_t b,
                                            bool add) {
  asm volatile(
      "{.reg .pred p;\nsetp.ne.b32 p,%69,0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.%70 "
      "{" NIBBLE_WGMMA_NUMBERS_64
      "},"
      "{%64,%65,%66,%67},%68,p%71;}"
      : NIBBLE_WGMMA_TILES_16("+r", d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
        "r"(static_cast<int>(add)), "C"(WgmmaCodes<kCodes>::kTypes),
        "C"(WgmmaCodes<kCodes>::kFactors));
}
template <W4a8Codes kCodes>
__device__ __forceinline__ void WgmmaPacked(uint32_t (&d)[32][4],
                                            const uint32_t (&a)[4], uint64_t b,
                                            bool add) {
  asm volatile(
      "{.reg .pred p;\nsetp.ne.b32 p,%133,0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k32.%134 "
      "{" NIBBLE_WGMMA_NUMBERS_128
      "},"
      "{%128,%129,%130,%131},%132,p%135;}"
      : NIBBLE_WGMMA_TILES_16("+r", d, 0), NIBBLE_WGMMA_TILES_16("+r", d, 16)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
        "r"(static_cast<int>(add)), "C"(WgmmaCodes<kCodes>::kTypes),
        "C"(WgmmaCodes<kCodes>::kFactors));
}

}  // namespace nibble::kernels::cuda
