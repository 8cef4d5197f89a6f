// Weights of every 4-bit kind, for tests of W4A16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/weight_view.h"
#include "tests/support/quantize_groups.h"
#include "tests/support/random.h"

namespace nibble::test {

// A kind of 4-bit weights.
struct WeightCase {
  std::string name;
  kernels::QuantFormat format;
  int64_t group = 0;  // 0: the format's; kPerChannel: one a row
  kernels::DType scale_dtype = kernels::DType::kF16;
  kernels::GptqZeros gptq_zeros = kernels::GptqZeros::kLessOne;
  bool act_order = false;
};
inline constexpr int64_t kPerChannel = -1;

// Every format and group.
const std::vector<WeightCase>& WeightCases();
const WeightCase& WeightCaseByName(const std::string& name);

// A matrix of a case, laid out as its checkpoints are. The view borrows.
class CaseWeight final {
 public:
  // All codes; scales of many sizes.
  CaseWeight(const WeightCase& weight_case, int64_t n, int64_t k,
             Random& random);
  kernels::WeightView View() const;
  GroupWeight& groups() { return *groups_; }
  std::vector<std::byte>& blocks() { return blocks_; }

 private:
  kernels::QuantFormat format_;
  std::string name_;
  int64_t n_;
  int64_t k_;
  std::vector<std::byte> blocks_;      // block formats
  std::optional<GroupWeight> groups_;  // the others
};

// Part of the reason for which the case cannot have this shape, or "".
std::string WhyRefused(const WeightCase& weight_case, int64_t n, int64_t k);

}  // namespace nibble::test
