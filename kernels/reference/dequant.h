// The meaning of every weight format: blocks of a file to FP32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/quant_format.h"
#include "kernels/weight_view.h"

namespace nibble::kernels::reference {

// Writes the k weights of one row of a file to out [k]. `row` holds
// RowBytes(format, k) bytes and need not be aligned; k is a multiple of the
// format's block_elements. Every operation is a single FP32 one, rounded, in
// the order that ggml and its Python package use, so that results agree bit
// for bit.
void DequantizeRow(QuantFormat format, const std::byte* row, int64_t k,
                   float* out);

// Writes row `row` of a matrix of any format to out [k]. The view has passed
// CheckWeight. The codes are multiplied and shifted in single FP32 operations
// as weight_view.h writes them; NVFP4 is tensor_scale * (e * v).
void DequantizeRow(const WeightView& weight, int64_t row, float* out);

}  // namespace nibble::kernels::reference
