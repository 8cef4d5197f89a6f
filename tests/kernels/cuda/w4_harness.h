// Runs W4A16 kernels in guarded memory and judges what they give.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/linear/pack.h"
#include "kernels/cuda/linear/w4a16.h"
#include "kernels/cuda/runtime.h"
#include "tests/kernels/cuda/w4_reference.h"

namespace nibble::test {

// Packed weights on the device.
struct DeviceWeight {
  kernels::cuda::PackedW4 packed;
  kernels::cuda::DeviceBuffer blocks;
  kernels::cuda::W4Weights view;

  static absl::StatusOr<DeviceWeight> Make(
      std::span<const kernels::WeightView> parts,
      const kernels::cuda::PackOptions& options = {.threads = 8});
};

// Where one run of a kernel left its result: host memory, valid until the next
// run. `problem` says what was written outside of it, or is "".
struct Result {
  const std::byte* data = nullptr;
  int64_t pitch_bytes = 0;
  kernels::DType dtype = kernels::DType::kF32;
  std::string problem = {};

  const std::byte* Row(int64_t row) const { return data + row * pitch_bytes; }
  double At(int64_t row, int64_t column) const;
};

// One multiplication to run.
struct Job {
  kernels::cuda::W4Weights w;
  const void* x = nullptr;  // device
  int64_t ldx = 0;
  kernels::DType x_dtype = kernels::DType::kBF16;
  kernels::DType y_dtype = kernels::DType::kF32;
  int64_t m = 0;
  int64_t n_out = 0;
  const float* bias = nullptr;  // device
  kernels::cuda::W4Epilogue epilogue = kernels::cuda::W4Epilogue::kStore;
  // What y holds before, [m, n_out] of y_dtype, host; null: NaN everywhere.
  const std::byte* before = nullptr;
  bool aligned = true;  // y and its rows stand at multiples of 16 bytes
  bool overlap = false;
  // Launch as if for this one, smaller than the real one; null: the real one.
  const kernels::cuda::DeviceInfo* device = nullptr;

  static Job Of(const DeviceWeight& w, const Inputs& x, int64_t m);
};

// Runs jobs on the first device, y surrounded by guard rows and columns. Used
// by one thread.
class Runner final {
 public:
  static Runner& Get();  // the process's; a device must be there
  Result Run(const Job& job, const kernels::LaunchSpec& spec);
  std::vector<kernels::LaunchSpec> Candidates(const Job& job) const;
  const kernels::cuda::DeviceInfo& device() const { return device_; }
  const kernels::cuda::Stream& stream() const { return stream_; }
  // Zeroed once; W4ScratchBytes(m, k) or more.
  void* Scratch(int64_t m, int64_t k);

 private:
  Runner();
  std::string CheckGuards(const Job& job, int64_t pitch, int64_t offset) const;

  kernels::cuda::DeviceInfo device_;
  kernels::cuda::Stream stream_;
  kernels::cuda::DeviceBuffer y_;
  kernels::cuda::DeviceBuffer scratch_;
  kernels::cuda::PinnedBuffer host_;
  std::vector<std::byte> poison_;
};

// Skips its tests where there is no GPU.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override;
};

// Tests of sizes that pass 2^31: skips them where the device has too little
// memory free.
class LargeGpuTest : public GpuTest {
 protected:
  static constexpr int64_t kTwoTo31 = int64_t{1} << 31;

  void SetUp() override;
  // `copies` of `bytes` on the device, one after the other.
  static kernels::cuda::DeviceBuffer Repeat(const void* from, int64_t bytes,
                                            int64_t copies);
};

// 1 .. 33 and the neighbours of 64, 128 and 256.
std::vector<int64_t> AllRows();

// "" or the result's problem, or where and by how much its rows [0, m) are off;
// row i of the result is row first_row + i of the reference.
std::string Compare(const Result& result, const Reference& reference, int64_t m,
                    int64_t first_row = 0);

// "" or the result's problem, or where two results differ in a bit: rows [0,
// m), n columns. `expected` holds rows [m, n] without gaps.
std::string CompareBits(const Result& result,
                        std::span<const std::byte> expected, int64_t m,
                        int64_t n);
// Rows [0, m) of a result, n columns, without gaps.
std::vector<std::byte> Copy(const Result& result, int64_t m, int64_t n);

}  // namespace nibble::test
