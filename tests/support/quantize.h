// Weights in every format, for tests: valid blocks, not the best ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/quant_format.h"
#include "kernels/weight_view.h"
#include "tests/support/random.h"

namespace nibble::test {

// Writes the k finite floats x as blocks of `format` to out
// [RowBytes(format, k)]; k is a multiple of block_elements.
void QuantizeRow(kernels::QuantFormat format, std::span<const float> x,
                 std::byte* out);

// |dequantized - x| is at most this times the greatest |x| of the block, for
// magnitudes well inside FP16's range.
double QuantizationBound(kernels::QuantFormat format);

// A matrix that owns its blocks.
class TestWeight final {
 public:
  // Quantizes x [n, k].
  TestWeight(kernels::QuantFormat format, int64_t n, int64_t k,
             std::span<const float> x);

  // The view starts `offset_bytes` after the start of an allocation.
  kernels::WeightView View() const;
  // The weights as the reference dequantizes them, [n, k].
  std::vector<float> Dequantized() const;

  // Moves the blocks to an address that is `shift_bytes` off alignment.
  void Misalign(int64_t shift_bytes);

 private:
  kernels::QuantFormat format_;
  int64_t n_;
  int64_t k_;
  int64_t shift_bytes_ = 0;
  std::string name_;
  std::vector<std::byte> bytes_;  // shift, then the blocks
};

// Normally distributed weights of a plausible size (1 / sqrt(k)).
TestWeight RandomWeight(kernels::QuantFormat format, int64_t n, int64_t k,
                        Random& random);

// Random bytes as blocks, but every FP16 or FP32 scale or element finite and
// of a moderate size, some of them negative, subnormal or 0: all codes and all
// sub-scales occur. [n * RowBytes(format, k)]
std::vector<std::byte> RandomBlocks(kernels::QuantFormat format, int64_t n,
                                    int64_t k, Random& random);

}  // namespace nibble::test
