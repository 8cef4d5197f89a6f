// Where the results of a W4A16 kernel go: the part of its parameters that all
// kernels of the family share. No CUDA in here.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/w4a16.h"
#include "kernels/tensor.h"

namespace nibble::kernels::cuda {

// Where a result goes and what happens to it before. By value.
struct Output {
  void* y;  // [m, n_out], rows ldy elements apart
  int64_t ldy;
  const float* bias;  // [n_out] or null
  int n_out;
  DType dtype;
  W4Epilogue epilogue;
  bool plain;  // BF16, no bias, nothing added: a store and no more
};

inline Output OutputOf(const W4Args& args) {
  return {.y = args.y,
          .ldy = args.ldy,
          .bias = args.bias,
          .n_out = static_cast<int>(args.n_out),
          .dtype = args.y_dtype,
          .epilogue = args.epilogue,
          .plain = args.y_dtype == DType::kBF16 && args.bias == nullptr &&
                   args.epilogue == W4Epilogue::kStore};
}

}  // namespace nibble::kernels::cuda
