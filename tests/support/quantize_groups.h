// Weights in the formats whose codes, scales and offsets are separate arrays
// (kGroupFormatTable), for tests and benches: laid out as their checkpoints
// are, rounded to nearest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/weight_view.h"
#include "tests/support/random.h"

namespace nibble::test {

// Which matrix. By value.
struct GroupSpec {
  kernels::QuantFormat format = kernels::QuantFormat::kInt4;
  int64_t n = 0;
  int64_t k = 0;
  int64_t group = 0;  // WeightView::group_elements; 0 where the format says it
  kernels::DType scale_dtype = kernels::DType::kF16;
  kernels::GptqZeros gptq_zeros = kernels::GptqZeros::kLessOne;
  bool act_order = false;  // gptq: columns belong to groups at random
};

// A matrix that owns its arrays, which a test may spoil. Their layout is
// WeightView's.
struct GroupWeight {
  GroupSpec spec;
  std::string name;
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
  std::vector<std::byte> zeros_or_mins;  // may be empty
  std::vector<int32_t> g_idx;            // may be empty
  float tensor_scale = 1.0f;

  // The view borrows from this object.
  kernels::WeightView View() const;
  // The weights as the reference dequantizes them, [n, k].
  std::vector<float> Dequantized() const;
};

// All codes and zero points; scales and minimums of a moderate size, some of
// them negative, subnormal or 0. Of mxfp4 e is in [117, 137].
GroupWeight RandomGroupWeight(const GroupSpec& spec, Random& random);

// Rounds x [n, k] to nearest. int4: the scale is a 15th of the range, the
// minimum the least weight. int4s: the scale is a 7th of the greatest
// magnitude. awq and gptq: as int4, the minimum rounded to a whole number of
// steps and the range stretched to hold 0. mxfp4: the specification's scale,
// the greatest power of two <= max |x|, divided by 4. nvfp4: the tensor's
// greatest magnitude is 448 * 6 of tensor_scale, a block's 6 of its scale.
// `random` orders the columns of act_order.
GroupWeight QuantizeGroups(const GroupSpec& spec, std::span<const float> x,
                           Random& random);

}  // namespace nibble::test
