// Operands of W4A8 multiplications, runs of the kernels in guarded memory, and
// what they should give.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/linear/w4a8.h"
#include "kernels/cuda/linear/w4a8_pack.h"
#include "kernels/cuda/runtime.h"
#include "kernels/reference/w4a8_gemm.h"
#include "kernels/tensor.h"

namespace nibble::test {

// What a test's operands are.
enum class W4a8Numbers : uint8_t {
  kAny,
  // Small integers: every sum is one that FP32 holds.
  kIntegers,
};

// Random weights that a format can hold.
kernels::cuda::W4Numbers RandomW4Numbers(kernels::cuda::W4a8Format format,
                                         int64_t n, int64_t k,
                                         W4a8Numbers numbers, uint64_t seed);

// x and W of one multiplication on host and device. What lies between k and the
// pitch of x is not zero. Owned by a test.
class W4a8Operands final {
 public:
  W4a8Operands(const kernels::cuda::W4a8Problem& problem, W4a8Numbers numbers,
               uint64_t seed = 1);
  W4a8Operands(const W4a8Operands&) = delete;
  W4a8Operands& operator=(const W4a8Operands&) = delete;

  // The arguments for the first m rows, without y.
  kernels::cuda::W4a8Args Args(int64_t m) const;
  // What y [m, n] holds, and the magnitudes of what its elements are sums of.
  // Uses all cores.
  std::vector<kernels::reference::W4A8Dot> Expected() const;
  // Bytes that the sums of x should be, [m, W4a8SumsPitch].
  std::vector<std::byte> ExpectedSums() const;
  std::vector<std::byte> Sums() const;
  const kernels::cuda::W4a8Problem& problem() const { return problem_; }

 private:
  bool IsFp8() const {
    return problem_.format.kind == kernels::cuda::W4a8Kind::kE4m3;
  }
  void ExpectColumn(int64_t column,
                    std::vector<kernels::reference::W4A8Dot>& y) const;

  kernels::cuda::W4a8Problem problem_;
  kernels::cuda::W4Numbers numbers_;
  kernels::cuda::PackedW4a8 packed_;
  int64_t x_pitch_ = 0;
  std::vector<float> x_;          // [m, k], what codes stand for
  std::vector<uint8_t> x_codes_;  // [m, k]
  std::vector<float> x_scales_, bias_;
  kernels::cuda::DeviceBuffer x_device_, x_scales_device_, sums_device_;
  kernels::cuda::DeviceBuffer blocks_device_, row_scales_device_,
      row_offsets_device_, bias_device_;
};

// Rows of y without gaps, [m, n]; `problem` says what was written outside of
// them, or is "".
struct W4a8Output {
  std::vector<std::byte> y;
  std::string problem;
};

// What becomes of a product: y, or added to what is there (W4a8Residual).
enum class W4a8Then : uint8_t { kStore, kAdd };
double W4a8Residual(int64_t row, int64_t column);  // every type holds it

// Runs the kernel on the first device, y full of NaN, where nothing is added,
// and surrounded by guard rows and columns. `aligned`: rows of y stand at
// multiples of 16 bytes.
W4a8Output RunW4a8(const W4a8Operands& operands, int64_t m,
                   kernels::DType y_dtype, bool aligned,
                   const kernels::LaunchSpec& spec,
                   W4a8Then then = W4a8Then::kStore);

// All ways to run a problem on the first device.
std::vector<kernels::LaunchSpec> W4a8Specs(
    const kernels::cuda::W4a8Problem& problem);

}  // namespace nibble::test
