// Descriptions of matrices for tensor copies.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace nibble::kernels::cuda {

// A matrix in device memory, 16-byte aligned as its rows are. Borrowed. By
// value.
struct TensorMatrix {
  const void* data = nullptr;
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  int element_bytes = 1;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t pitch_bytes = 0;
};

// Has it read in boxes of 128 bytes of each of `box_rows` rows, swizzled as
// wgmma reads its operands; zeros beyond the edges.
CUtensorMap MakeTensorMap(const TensorMatrix& matrix, int box_rows);

}  // namespace nibble::kernels::cuda
