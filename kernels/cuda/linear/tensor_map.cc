#include "kernels/cuda/linear/tensor_map.h"

#include <cuda_runtime_api.h>

#include "base/check.h"
#include "kernels/cuda/runtime.h"

namespace nibble::kernels::cuda {
namespace {

constexpr int kBoxBytes = 128;  // of a row, what the swizzle spans

// The driver's function that describes a matrix to the tensor copy unit; asked
// for by name, since the driver's library is not linked.
using EncodeTiled = decltype(&cuTensorMapEncodeTiled);
EncodeTiled TensorMapEncoder() {
  static const EncodeTiled encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    NIBBLE_CUDA_CHECK(cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found));
    NIBBLE_CHECK(found == cudaDriverEntryPointSuccess);
    return reinterpret_cast<EncodeTiled>(function);
  }();
  return encode;
}

}  // namespace

CUtensorMap MakeTensorMap(const TensorMatrix& matrix, int box_rows) {
  CUtensorMap map;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(matrix.columns),
                               static_cast<cuuint64_t>(matrix.rows)};
  const cuuint64_t pitches[1] = {static_cast<cuuint64_t>(matrix.pitch_bytes)};
  const cuuint32_t box[2] = {
      static_cast<cuuint32_t>(kBoxBytes / matrix.element_bytes),
      static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  const CUresult result = TensorMapEncoder()(
      &map, matrix.type, 2, const_cast<void*>(matrix.data), sizes, pitches, box,
      steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  NIBBLE_CHECK_EQ(static_cast<int>(result), static_cast<int>(CUDA_SUCCESS));
  return map;
}

}  // namespace nibble::kernels::cuda
