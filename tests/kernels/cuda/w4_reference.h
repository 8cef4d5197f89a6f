// Activations on the device and in FP64, and what a multiplication of them
// gives: the reference of the tests of W4A16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/runtime.h"
#include "kernels/tensor.h"
#include "kernels/weight_view.h"

namespace nibble::test {

// Memory on the device with these contents.
template <typename T>
kernels::cuda::DeviceBuffer ToDevice(std::span<const T> values) {
  auto buffer = kernels::cuda::DeviceBuffer::Make(
                    static_cast<int64_t>(values.size_bytes()))
                    .value();
  NIBBLE_CUDA_CHECK(cudaMemcpy(buffer.data(), values.data(),
                               values.size_bytes(), cudaMemcpyHostToDevice));
  // Streams that do not wait for the default one may use it now.
  NIBBLE_CUDA_CHECK(cudaDeviceSynchronize());
  return buffer;
}

// Numbers as elements of `dtype`, rounded to nearest.
std::vector<std::byte> Encode(kernels::DType dtype,
                              std::span<const float> values);
double Decode(kernels::DType dtype, const std::byte* element);

// Rows and deviation of the usual x: products stay in FP16's range.
inline constexpr int64_t kNormalRows = 257;
inline constexpr float kNormalDeviation = 1.0f / 64;
std::vector<float> NormalValues(int64_t k);  // [kNormalRows, k]

// x [m, k] on the device, rounded to 16 bits, and as FP64. What lies between k
// and the pitch is NaN.
class Inputs final {
 public:
  // `order`: PackedW4::x_perm of the weights, or empty.
  Inputs(kernels::DType dtype, int64_t m, std::span<const float> values,
         std::span<const int32_t> order = {});

  // Of NormalValues; made once for each k and dtype.
  static const Inputs& Normal(kernels::DType dtype, int64_t k);

  kernels::DType dtype() const { return dtype_; }
  int64_t m() const { return m_; }
  int64_t k() const { return k_; }
  int64_t pitch() const { return pitch_; }
  const std::byte* device(int64_t row = 0) const {
    return device_.data() + row * pitch_ * 2;
  }
  // Column j of x, [m].
  const double* Column(int64_t j) const { return columns_.data() + j * m_; }

 private:
  kernels::DType dtype_;
  int64_t m_;
  int64_t k_;
  int64_t pitch_;
  std::vector<double> columns_;  // [k, m]
  kernels::cuda::DeviceBuffer device_;
};

// x W^T in FP64 for some columns, and how far off FP32 sums may be. Computed
// with all cores.
struct Reference {
  std::vector<int64_t> columns;
  int64_t m = 0;
  std::vector<double> value;  // [columns, m]
  std::vector<double> error;  // [columns, m], see ErrorScale

  double Value(size_t column, int64_t row) const {
    return value[column * m + row];
  }
  double Error(size_t column, int64_t row) const {
    return error[column * m + row];
  }

  // Of rows `columns` of a matrix.
  static Reference Make(const Inputs& x, const kernels::WeightView& weight,
                        std::vector<int64_t> columns);
};

// All of 0 .. n - 1 where they are few; else the first and last 24 and some
// between.
std::vector<int64_t> SampleColumns(int64_t n);

}  // namespace nibble::test
