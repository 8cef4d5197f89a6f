// A borrowed view of a dense array in a backend's memory.
#pragma once

#include <cstdint>
#include <span>

#include "base/check.h"

namespace nibble::kernels {

enum class DType : uint8_t { kF32, kF16, kBF16, kI8, kI32 };

constexpr int64_t ElementBytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kI8:
      return 1;
  }
  return 0;
}

// A matrix [rows, cols], each row contiguous, rows `row_stride` elements
// apart. Borrowed: the owner (a Buffer, a vector) outlives it. By value.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;  // elements

  static TensorView F32(float* data, int64_t rows, int64_t cols) {
    return {data, DType::kF32, rows, cols, cols};
  }

  // Row `row` as floats [cols]; host memory and kF32 only.
  float* RowF32(int64_t row) const {
    NIBBLE_DCHECK(dtype == DType::kF32 && row >= 0 && row < rows);
    return static_cast<float*>(data) + row * row_stride;
  }

  // Rows [begin, begin + count).
  TensorView Rows(int64_t begin, int64_t count) const {
    NIBBLE_DCHECK(begin >= 0 && count >= 0 && begin + count <= rows);
    TensorView part = *this;
    part.data =
        static_cast<char*>(data) + begin * row_stride * ElementBytes(dtype);
    part.rows = count;
    return part;
  }

  // Columns [begin, begin + count) of every row.
  TensorView Cols(int64_t begin, int64_t count) const {
    NIBBLE_DCHECK(begin >= 0 && count >= 0 && begin + count <= cols);
    TensorView part = *this;
    part.data = static_cast<char*>(data) + begin * ElementBytes(dtype);
    part.cols = count;
    return part;
  }
};

}  // namespace nibble::kernels
