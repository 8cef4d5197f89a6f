// What the host hands to the kernels of quantize.cuh, and where they are.
#pragma once

#include <cstdint>

#include "kernels/cuda/quantize/quantize.h"
#include "kernels/cuda/quantize/row_shape.h"

namespace nibble::kernels::cuda {

// QuantizeArgs with everything worked out. By value.
struct QuantizeParams {
  const char* x = nullptr;
  const char* up = nullptr;
  char* residual = nullptr;
  const float* weight = nullptr;
  int64_t x_bytes = 0;         // from row to row, of x and up
  int64_t residual_bytes = 0;  // from row to row
  int64_t m = 0;
  int chunks = 0;       // k / 8
  int code_chunks = 0;  // those that are stored: an even number
  float eps = 0;
  float inverse_k = 0;

  uint8_t* codes = nullptr;
  int64_t code_bytes = 0;  // from row to row
  float* scales = nullptr;
  int64_t scale_pitch = 0;  // kFp8Block: floats; kQ8: pairs of a row
  int32_t* zeros = nullptr;
  float* greatest = nullptr;
  float fp8_greatest = 0;  // of the format
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
