// A weight matrix as a checkpoint holds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/quant_format.h"

namespace nibble::kernels {

// Matrix W[n, k] (n output features, k input features) of a checkpoint; y = x
// W^T. Borrowed from the mapped file, which outlives it. By value.
//
// GGUF formats interleave scales and codes in one array, `data`: row i starts
// at data + i * RowBytes(format, k). The bytes were checked against the file's
// size at load; `data` need not be aligned.
struct WeightView {
  std::string_view name;  // the tensor's name in the file, for messages
  QuantFormat format = QuantFormat::kF32;
  int64_t n = 0;
  int64_t k = 0;
  const std::byte* data = nullptr;

  const std::byte* Row(int64_t row) const {
    return data + row * RowBytes(format, k);
  }
  int64_t Bytes() const { return n * RowBytes(format, k); }
};

}  // namespace nibble::kernels
