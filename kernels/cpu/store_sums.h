// Where the sums of one panel of weights go.
#pragma once

#include <cstdint>

#include "kernels/linear.h"

namespace nibble::kernels::cpu {

// Sums of a panel for some rows of x, and their place in y. Borrowed; by value.
struct PanelSums {
  const float* sums = nullptr;  // [rows, 16]
  int64_t rows = 0;
  int64_t columns = 0;          // of the panel that are y's, 1 to 16
  const float* bias = nullptr;  // [columns]
  float* y = nullptr;           // [rows, columns], rows y_stride apart
  int64_t y_stride = 0;         // elements
};

// y = sums + bias, or with Epilogue::kAdd y += sums + bias.
void StoreSums(const PanelSums& panel, Epilogue epilogue);

}  // namespace nibble::kernels::cpu
