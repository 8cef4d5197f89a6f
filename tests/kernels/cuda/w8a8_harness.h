// Operands of W8A8 multiplications, runs of the kernels in guarded memory, and
// what they should give.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/linear/w8a8.h"
#include "kernels/cuda/linear/w8a8_plan.h"
#include "kernels/cuda/runtime.h"
#include "kernels/reference/w8a8_gemm.h"
#include "kernels/tensor.h"
#include "tests/kernels/cuda/w4_harness.h"

namespace nibble::test {

// What a test's codes are.
enum class W8Codes : uint8_t {
  kAny,     // all of them, but for E4M3's NaN
  kSparse,  // mostly zeros, else 1 and 2 and their negatives: all sums are
            // exact
};

// Which operands to make. By value.
struct W8Setup {
  kernels::cuda::W8Problem problem;
  W8Codes codes = W8Codes::kAny;
  // Of both operands, but for those of blocks and of groups that a kind has.
  kernels::cuda::W8Scaling scaling = kernels::cuda::W8Scaling::kRow;
  float least_scale = 1, greatest_scale = 1;
  bool zeros = false;  // of x; kInt8
  int fill = -1;       // every code, and 127 every zero, where it is not -1
  uint64_t seed = 1;
};

// x and W of one multiplication on host and device. What lies between k and the
// pitch of x is not zero. Owned by a test.
class W8Operands final {
 public:
  explicit W8Operands(const W8Setup& setup);
  W8Operands(const W8Operands&) = delete;
  W8Operands& operator=(const W8Operands&) = delete;

  // The arguments for the first m rows, without y.
  kernels::cuda::W8Args Args(int64_t m) const;
  kernels::reference::CodedMatrix X() const;
  kernels::reference::CodedMatrix W() const;
  const kernels::cuda::W8Problem& problem() const { return setup_.problem; }

  // Change one code of x or W, on host and device.
  void SetX(int64_t row, int64_t k, uint8_t code);
  void SetW(int64_t row, int64_t k, uint8_t code);

 private:
  bool IsInt8() const;
  kernels::cuda::W8Scaling XScaling() const;
  kernels::cuda::W8Scaling WScaling() const;
  void MakeCodes();
  void MakeScales();
  void Upload();

  W8Setup setup_;
  int64_t x_pitch_ = 0, scales_pitch_ = 0;
  std::vector<uint8_t> x_, w_;              // [m, k], [n, k]
  std::vector<float> x_scales_, w_scales_;  // groups: [n, k / 128, rounded up]
  std::vector<int32_t> zeros_;
  kernels::cuda::DeviceBuffer x_codes_device_, w_codes_device_;
  kernels::cuda::DeviceBuffer x_scales_device_, w_scales_device_;
  kernels::cuda::DeviceBuffer zeros_device_, sums_device_;
  kernels::cuda::DeviceBuffer scaled_sums_device_;
};

// Every product of the operands, or of a sample: dot [rows, columns] with
// rows 0, 1, ... and the columns named. Uses all cores.
struct W8Reference {
  int64_t rows = 0, columns = 0;
  std::vector<kernels::reference::CodedDot> dots;

  static W8Reference Make(const W8Operands& operands);
  const kernels::reference::CodedDot& At(int64_t row, int64_t column) const {
    return dots[row * columns + column];
  }
};

// How far off a sum may be before y's rounding. Tensor cores cut each product
// off at 2^-13 of the greatest number that they add it to, always towards zero:
// 32 times in a step, were all products as great.
double W8SumError(kernels::cuda::W8Kind kind,
                  const kernels::reference::CodedDot& dot);

// One multiplication to run.
struct W8Job {
  kernels::cuda::W8Args args;  // y, ldy: unset
  bool aligned = true;         // y and its rows stand at multiples of 16 bytes
  bool overlap = false;
  // What y holds before and is added to it, [m, n] of y_dtype, host; null: NaN
  // everywhere.
  const std::byte* added_to = nullptr;
};

// Rows of y without gaps, [m, n]; `problem` says what was written outside of
// them, or is "".
struct W8Output {
  std::vector<std::byte> y;
  std::string problem;
};

// Runs jobs on the first device, y surrounded by guard rows and columns. Used
// by one thread.
class W8Runner final {
 public:
  static W8Runner& Get();  // the process's; a device must be there
  W8Output Run(const W8Job& job, const kernels::LaunchSpec& spec);
  // All clusters of `tiles` that can run a problem, worth trying or not.
  std::vector<kernels::LaunchSpec> Specs(
      const kernels::cuda::W8Problem& problem,
      std::span<const kernels::cuda::W8Tile> tiles) const;
  // Those of all tiles: for Hopper, and for every device.
  std::vector<kernels::LaunchSpec> Specs(
      const kernels::cuda::W8Problem& problem) const;
  const kernels::cuda::DeviceInfo& device() const { return device_; }
  const kernels::cuda::Stream& stream() const { return stream_; }

 private:
  W8Runner();

  kernels::cuda::DeviceInfo device_;
  kernels::cuda::Stream stream_;
  kernels::cuda::DeviceBuffer y_;
  kernels::cuda::PinnedBuffer host_;
};

// Why the device or the build cannot run a kind, or "".
std::string WhyNoW8(kernels::cuda::W8Kind kind);

// A test of each kind; skips itself where that cannot run.
class W8KindTest : public GpuTest,
                   public ::testing::WithParamInterface<kernels::cuda::W8Kind> {
 protected:
  void SetUp() override;
};

}  // namespace nibble::test
