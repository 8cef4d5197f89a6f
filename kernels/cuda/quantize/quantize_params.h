// What the host hands to the kernels of quantize.cuh, and where they are.
#pragma once

#include <cstdint>

#include "kernels/cuda/quantize/quantize.h"
#include "kernels/cuda/quantize/row_shape.h"

namespace nibble::kernels::cuda {

// QuantizeArgs with everything worked out. By value. What the first loads need
// stands first: a line of parameters comes from memory when it is asked for.
// Rows and the bytes between them in 32 bits: an address is one multiplication.
struct QuantizeParams {
  const char* x = nullptr;
  const float* weight = nullptr;
  uint32_t m = 0;
  uint32_t x_bytes = 0;         // from row to row, of x and up
  int chunks = 0;               // k / 8
  uint32_t residual_bytes = 0;  // from row to row
  char* residual = nullptr;
  const char* up = nullptr;
  uint8_t* codes = nullptr;
  float* scales = nullptr;
  uint32_t code_bytes = 0;  // from row to row
  float eps = 0;
  float inverse_k = 0;

  int32_t* zeros = nullptr;
  float* greatest = nullptr;
  int64_t scale_pitch = 0;  // kFp8Block: floats; kQ8: pairs of a row
  float fp8_greatest = 0;   // of the format
  bool e5m2 = false;
  bool asymmetric = false;
  bool given_scale = false;
  bool wide_groups = false;  // kQ8: 256 values share a scale
};

// Whether inputs come by asynchronous copies through shared memory, 16 bytes
// for each run of eight values, input and thread: those of SiLU-mul, so that
// all loads of a row are under way although registers hold its values only.
constexpr bool IsStaged(QuantizeOp op, int64_t element_bytes, int chunks) {
  return op == QuantizeOp::kSiluMul && element_bytes == 2 && chunks <= 4;
}

// The shape whose kernel takes the rows of `shape`.
constexpr int KernelShape(int shape) {
  static_assert(kRowShapes[0].chunks == kRowShapes[1].chunks,
                "rows of the first shape are spread as the second has it");
  return shape == 0 ? 1 : shape;
}

// CTAs of the most threads that an SM must have registers for; 0: no wish. Two
// of the second shape are held to 64 registers. RMSNorm would take 80, which
// leaves room for one CTA of a row of 14,336, and is faster with 64; but for
// INT8 with a scale for each row: it takes 70 and would be slower. Without a
// wish the compiler puts the last loads of a row behind the use of the first
// ones; staged inputs have their own way.
constexpr int MinCtas(QuantizeOp op, QuantizeCode code, int64_t element_bytes,
                      int shape) {
  if (IsStaged(op, element_bytes, kRowShapes[shape].chunks)) return 0;
  const bool held = op == QuantizeOp::kNorm && code != QuantizeCode::kInt8Token;
  return held && shape == 1 ? 2 : 1;
}

// What the kernels tell apart when they are compiled: a given scale is a
// matter of kFp8Token's.
inline constexpr QuantizeCode kCompiledCodes[] = {
    QuantizeCode::kInt8Token, QuantizeCode::kFp8Token, QuantizeCode::kFp8Block,
    QuantizeCode::kQ8};
inline constexpr int kNumCompiledCodes = 4;

// Kernels of one operation and type, to be launched with threads [32 * warps
// of a row, rows] and one QuantizeParams.
struct QuantizeKernels {
  const void* kernel[kNumCompiledCodes][kNumRowShapes];
};

QuantizeKernels PlainKernelsBf16();
QuantizeKernels PlainKernelsF16();
QuantizeKernels PlainKernelsF32();
QuantizeKernels NormKernelsBf16();
QuantizeKernels NormKernelsF16();
QuantizeKernels NormKernelsF32();
QuantizeKernels AddNormKernelsBf16();
QuantizeKernels AddNormKernelsF16();
QuantizeKernels AddNormKernelsF32();
QuantizeKernels SiluMulKernelsBf16();
QuantizeKernels SiluMulKernelsF16();
QuantizeKernels SiluMulKernelsF32();

}  // namespace nibble::kernels::cuda
