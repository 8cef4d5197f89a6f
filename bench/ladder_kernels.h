// A matrix of Q4_0 blocks times a vector, written in steps that load the same
// bytes in fewer, wider requests; and the same with an FP16 matrix. After "Why
// My 4-Bit CUDA Kernel Wasn't Faster" (August 2026), whose layout this is.
//
// A block is 32 weights: 16 bytes of codes, the even weight of a pair in the
// low four bits, and an FP16 scale; a weight is scale * (code - 8). Codes and
// scales stand in two arrays, row by row.
#pragma once

#include <cstdint>

struct CUstream_st;  // cudaStream_t

namespace nibble::bench {

inline constexpr int kQ4BlockWeights = 32;
inline constexpr int kQ4BlockCodeBytes = 16;

// Device memory, borrowed; codes 16-byte aligned. By value.
struct LadderQ4 {
  const uint8_t* codes = nullptr;    // [n, k / 32, 16]
  const uint16_t* scales = nullptr;  // [n, k / 32], FP16
  int64_t n = 0;
  int64_t k = 0;  // a multiple of 32
};

// y [n] = W x [k], FP16 activations, FP32 results. The number is that of the
// global loads a block costs.
void LaunchByteLoads(const LadderQ4& w, const void* x, float* y,
                     CUstream_st* stream);  // 49: codes and x one at a time
void LaunchWideCodes(const LadderQ4& w, const void* x, float* y,
                     CUstream_st* stream);  // 18: codes at once, x in pairs
void LaunchWideAll(const LadderQ4& w, const void* x, float* y,
                   CUstream_st* stream);  // 6: x eight at a time too

// x in blocks of 32 8-bit codes: 16 of even elements, then 16 of odd ones, as
// the codes of weights lie after a mask and after a shift and a mask.
struct LadderQ8 {
  uint8_t* codes = nullptr;  // [k / 32, 32] int8, 16-byte aligned
  float* scales = nullptr;   // [k / 32, 2]: scale, scale * sum of the codes
};
void LaunchQuantize(const void* x, int64_t k, const LadderQ8& q,
                    CUstream_st* stream);
// Sums of products of integers within a block. 5 loads.
void LaunchIntegerDots(const LadderQ4& w, const LadderQ8& x, float* y,
                       CUstream_st* stream);

// The matrix in FP16, [n, k], k a multiple of 8: a warp a row, 16-byte loads.
void LaunchHalfMatrix(const void* w, const void* x, float* y, int64_t n,
                      int64_t k, CUstream_st* stream);

}  // namespace nibble::bench
