#include "kernels/cuda/linear/inst/mid_kernels.h"

#include <algorithm>

#include "base/check.h"

namespace nibble::kernels::cuda {
namespace {

struct Format {
  W4Layout layout;
  MidKernels (*make)();
};

constexpr Format kFormats[] = {
    {{W4Code::kInt4, W4Scale::kScale, 32}, MidInt4Scale32},
    {{W4Code::kInt4, W4Scale::kScale, 64}, MidInt4Scale64},
    {{W4Code::kInt4, W4Scale::kScale, 128}, MidInt4Scale128},
    {{W4Code::kInt4, W4Scale::kScaleMin, 32}, MidInt4Min32},
    {{W4Code::kInt4, W4Scale::kScaleMin, 64}, MidInt4Min64},
    {{W4Code::kInt4, W4Scale::kScaleMin, 128}, MidInt4Min128},
    {{W4Code::kInt4, W4Scale::kScaleZero, 32}, MidInt4Zero32},
    {{W4Code::kInt4, W4Scale::kScaleZero, 64}, MidInt4Zero64},
    {{W4Code::kInt4, W4Scale::kScaleZero, 128}, MidInt4Zero128},
    {{W4Code::kInt4, W4Scale::kQ4K, 32}, MidQ4K},
    {{W4Code::kE2m1, W4Scale::kE8m0, 32}, MidMxfp4},
    {{W4Code::kE2m1, W4Scale::kE4m3, 16}, MidNvfp4},
};

// All of them, in the order of kFormats.
using Table = std::array<MidKernels, std::size(kFormats)>;

Table MakeTable() {
  Table table;
  for (size_t i = 0; i < table.size(); ++i) table[i] = kFormats[i].make();
  return table;
}

// Null for a layout that is not compiled.
const MidKernelsOf* Find(const W4Layout& layout, DType x_dtype) {
  static const Table table = MakeTable();
  NIBBLE_CHECK(x_dtype == DType::kBF16 || x_dtype == DType::kF16);
  for (size_t i = 0; i < table.size(); ++i) {
    if (kFormats[i].layout != layout) continue;
    return x_dtype == DType::kBF16 ? &table[i].bf16 : &table[i].f16;
  }
  return nullptr;
}

}  // namespace

const void* MidKernel(const W4Layout& layout, DType x_dtype,
                      const MidVariant& variant) {
  const auto* at = std::find(kMidVariants.begin(), kMidVariants.end(), variant);
  NIBBLE_CHECK(at != kMidVariants.end());
  const MidKernelsOf* kernels = Find(layout, x_dtype);
  if (kernels == nullptr) return nullptr;
  return kernels->multiply[static_cast<size_t>(at - kMidVariants.begin())];
}

const void* PrepareKernelOf(const W4Layout& layout, DType x_dtype) {
  const MidKernelsOf* kernels = Find(layout, x_dtype);
  return kernels == nullptr ? nullptr : kernels->prepare;
}

}  // namespace nibble::kernels::cuda
