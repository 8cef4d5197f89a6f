// Products of matrices of 8-bit codes, computed so that they can be believed:
// integers exactly, the rest in FP64. What the W8A8 kernels are tested against.
#pragma once

#include <cstdint>
#include <span>

namespace nibble::kernels::reference {

enum class CodeType : uint8_t { kInt8, kE4m3 };

// Which scale an element has: that at row / rows * row_step + k / ks * k_step.
// One a row is {.rows = 1, .row_step = 1}, one for all is {}. By value.
struct ScaleGrid {
  std::span<const float> scales = {};
  int64_t rows = int64_t{1} << 62;  // that share a scale
  int64_t ks = int64_t{1} << 62;    // elements along k that share a scale
  int64_t row_step = 0;
  int64_t k_step = 0;

  float At(int64_t row, int64_t k) const {
    return scales[row / rows * row_step + k / ks * k_step];
  }
};

// A matrix [rows, k], a scale times (code - zero). Borrowed. By value.
struct CodedMatrix {
  CodeType type = CodeType::kInt8;
  std::span<const uint8_t> codes = {};  // [rows, k] without gaps
  int64_t k = 0;
  ScaleGrid grid = {};
  std::span<const int32_t> zeros = {};  // [rows], or empty; kInt8

  std::span<const uint8_t> Row(int64_t row) const {
    return codes.subspan(row * k, k);
  }
};

// A sum of products, and the sum of their magnitudes, which says how far off a
// sum in fewer bits may be. By value.
struct CodedDot {
  double value = 0;
  double magnitude = 0;
};

// Row `row` of x times row `column` of w; both of one type and k. Within runs
// of elements that share their scales INT8 products are summed in 64 bits, E4M3
// products, multiples of 2^-18 below 2^18, in FP64, which is exact as well.
CodedDot DotOfCodes(const CodedMatrix& x, int64_t row, const CodedMatrix& w,
                    int64_t column);

}  // namespace nibble::kernels::reference
