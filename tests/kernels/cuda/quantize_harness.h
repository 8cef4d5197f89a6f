// Runs the activation quantizers in guarded memory and judges what they give.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/quantize/quantize.h"

namespace nibble::test {

// One launch, without its data. By value.
struct QuantizeCase {
  kernels::cuda::QuantizeOp op = kernels::cuda::QuantizeOp::kPlain;
  kernels::DType dtype = kernels::DType::kBF16;
  kernels::cuda::QuantizeCode code = kernels::cuda::QuantizeCode::kInt8Token;
  kernels::Fp8 fp8 = kernels::Fp8::kE4m3;
  kernels::Int8Range range = kernels::Int8Range::kSymmetric;
  int q8_group = 32;
  int64_t m = 1;
  int64_t k = 8;

  bool IsNorm() const;
  bool IsFp8() const;
  std::string ToString() const;  // one line
};

// All operations, types and ways to encode, of m x k.
std::vector<QuantizeCase> AllQuantizeCases(int64_t m, int64_t k);

// Rows of all kinds by turns: normal, with great channels, one-sided, small,
// great, zero. Elements are numbers of the type. Host memory, by value.
struct QuantizeInputs {
  std::vector<float> x;         // [m, k]
  std::vector<float> up;        // [m, k], kSiluMul
  std::vector<float> residual;  // [m, k], kAddNorm
  std::vector<float> weight;    // [k], norms
  float eps = 1e-5f;
  float given_scale = 0;  // kFp8Tensor: clips some values, flushes others

  static QuantizeInputs Make(const QuantizeCase& c, uint64_t seed);
};

// What a launch wrote. Host memory, by value.
struct QuantizeResult {
  std::vector<uint8_t> codes;   // [m, k]
  std::vector<float> scales;    // as QuantizeArgs has them, without padding
  std::vector<int32_t> zeros;   // [m]
  std::vector<float> residual;  // [m, k]
  float greatest = 0;
  // What was written outside of all this, or not written in it, or "".
  std::string problem;

  // Bit for bit, NaN included.
  bool operator==(const QuantizeResult& other) const;
};

// Runs it on the first device; rows of inputs and codes have gaps between
// them, which must stay as they are.
QuantizeResult RunQuantize(
    const QuantizeCase& c, const QuantizeInputs& inputs,
    const kernels::cuda::QuantizeLaunchOptions& options = {});

// "" or where and how the result is wrong.
std::string CheckQuantized(const QuantizeCase& c, const QuantizeInputs& inputs,
                           const QuantizeResult& result);

}  // namespace nibble::test
