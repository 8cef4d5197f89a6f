// The meaning of every weight format: blocks of a file to FP32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/quant_format.h"

namespace nibble::kernels::reference {

// Writes the k weights of one row of a file to out [k]. `row` holds
// RowBytes(format, k) bytes and need not be aligned; k is a multiple of the
// format's block_elements. Every operation is a single FP32 one, rounded, in
// the order that ggml and its Python package use, so that results agree bit
// for bit.
void DequantizeRow(QuantFormat format, const std::byte* row, int64_t k,
                   float* out);

}  // namespace nibble::kernels::reference
