#include "tests/kernels/cuda/w4_cases.h"

#include "base/check.h"
#include "tests/support/quantize.h"

namespace nibble::test {

using kernels::DType;
using kernels::GptqZeros;
using kernels::QuantFormat;
using kernels::WeightView;

const std::vector<WeightCase>& WeightCases() {
  static const auto* const cases = [] {
    auto* all = new std::vector<WeightCase>();
    for (const int64_t group :
         {int64_t{32}, int64_t{64}, int64_t{128}, int64_t{256}, kPerChannel}) {
      const std::string suffix =
          group == kPerChannel ? "pc" : "g" + std::to_string(group);
      all->push_back({"int4_" + suffix, QuantFormat::kInt4, group});
      all->push_back({"int4s_" + suffix, QuantFormat::kInt4Sym, group});
      all->push_back({"awq_" + suffix, QuantFormat::kAwq, group});
      all->push_back({"gptq_" + suffix, QuantFormat::kGptq, group});
    }
    all->push_back({"int4_g128_bf16", QuantFormat::kInt4, 128, DType::kBF16});
    all->push_back({"gptq_v2_g64", QuantFormat::kGptq, 64, DType::kF16,
                    GptqZeros::kPlain});
    all->push_back({"gptq_order_g128", QuantFormat::kGptq, 128, DType::kF16,
                    GptqZeros::kLessOne, true});
    all->push_back({"q4_0", QuantFormat::kQ4_0});
    all->push_back({"q4_1", QuantFormat::kQ4_1});
    all->push_back({"q4_k", QuantFormat::kQ4_K});
    all->push_back({"mxfp4", QuantFormat::kMxfp4});
    all->push_back({"nvfp4", QuantFormat::kNvfp4});
    return all;
  }();
  return *cases;
}

const WeightCase& WeightCaseByName(const std::string& name) {
  for (const WeightCase& weight_case : WeightCases()) {
    if (weight_case.name == name) return weight_case;
  }
  ::nibble::internal::CheckFailed(__FILE__, __LINE__, "no case " + name);
}

CaseWeight::CaseWeight(const WeightCase& weight_case, int64_t n, int64_t k,
                       Random& random)
    : format_(weight_case.format),
      name_("test." + weight_case.name),
      n_(n),
      k_(k) {
  if (kernels::IsBlockFormat(format_)) {
    blocks_ = RandomBlocks(format_, n, k, random);
    if (blocks_.empty()) blocks_.resize(1);  // a matrix has an address
    return;
  }
  groups_ = RandomGroupWeight(
      {.format = format_,
       .n = n,
       .k = k,
       .group = weight_case.group == kPerChannel ? k : weight_case.group,
       .scale_dtype = weight_case.scale_dtype,
       .gptq_zeros = weight_case.gptq_zeros,
       .act_order = weight_case.act_order},
      random);
}

WeightView CaseWeight::View() const {
  if (groups_.has_value()) return groups_->View();
  WeightView view;
  view.name = name_;
  view.format = format_;
  view.n = n_;
  view.k = k_;
  view.data = blocks_.data();
  return view;
}

std::string WhyRefused(const WeightCase& weight_case, int64_t n, int64_t k) {
  int64_t multiple = 2;
  switch (weight_case.format) {
    case QuantFormat::kQ4_0:
    case QuantFormat::kQ4_1:
    case QuantFormat::kMxfp4:
      multiple = 32;
      break;
    case QuantFormat::kNvfp4:
      multiple = 16;
      break;
    case QuantFormat::kQ4_K:
      multiple = 256;
      break;
    case QuantFormat::kAwq:
      multiple = weight_case.group == kPerChannel ? k : weight_case.group;
      break;
    case QuantFormat::kGptq:
      multiple = 8;
      break;
    default:
      break;
  }
  const bool words = weight_case.format == QuantFormat::kAwq ||
                     weight_case.format == QuantFormat::kGptq;
  if (words && n % 8 != 0) {
    return "n = " + std::to_string(n) + " is no multiple of 8";
  }
  if (k % multiple == 0) return "";
  return "k = " + std::to_string(k) + " is no multiple of " +
         std::to_string(multiple);
}

}  // namespace nibble::test
