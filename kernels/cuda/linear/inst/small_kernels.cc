#include "kernels/cuda/linear/inst/small_kernels.h"

#include <algorithm>

#include "base/check.h"

namespace nibble::kernels::cuda {
namespace {

struct Format {
  W4Layout layout;
  SmallKernels (*make)();
};

constexpr Format kFormats[] = {
    {{W4Code::kInt4, W4Scale::kScale, 32}, SmallInt4Scale32},
    {{W4Code::kInt4, W4Scale::kScale, 64}, SmallInt4Scale64},
    {{W4Code::kInt4, W4Scale::kScale, 128}, SmallInt4Scale128},
    {{W4Code::kInt4, W4Scale::kScaleMin, 32}, SmallInt4Min32},
    {{W4Code::kInt4, W4Scale::kScaleMin, 64}, SmallInt4Min64},
    {{W4Code::kInt4, W4Scale::kScaleMin, 128}, SmallInt4Min128},
    {{W4Code::kInt4, W4Scale::kScaleZero, 32}, SmallInt4Zero32},
    {{W4Code::kInt4, W4Scale::kScaleZero, 64}, SmallInt4Zero64},
    {{W4Code::kInt4, W4Scale::kScaleZero, 128}, SmallInt4Zero128},
    {{W4Code::kInt4, W4Scale::kQ4K, 32}, SmallQ4K},
    {{W4Code::kE2m1, W4Scale::kE8m0, 32}, SmallMxfp4},
    {{W4Code::kE2m1, W4Scale::kE4m3, 16}, SmallNvfp4},
};

// All of them, in the order of kFormats.
using Table = std::array<SmallKernels, std::size(kFormats)>;

Table MakeTable() {
  Table table;
  for (size_t i = 0; i < table.size(); ++i) table[i] = kFormats[i].make();
  return table;
}

}  // namespace

const void* SmallKernel(const W4Layout& layout, DType x_dtype,
                        const SmallVariant& variant) {
  static const Table table = MakeTable();
  NIBBLE_CHECK(x_dtype == DType::kBF16 || x_dtype == DType::kF16);
  const auto* at =
      std::find(kSmallVariants.begin(), kSmallVariants.end(), variant);
  NIBBLE_CHECK(at != kSmallVariants.end());
  for (size_t i = 0; i < table.size(); ++i) {
    if (kFormats[i].layout != layout) continue;
    const auto& kernels =
        x_dtype == DType::kBF16 ? table[i].bf16 : table[i].f16;
    return kernels[static_cast<size_t>(at - kSmallVariants.begin())];
  }
  return nullptr;
}

}  // namespace nibble::kernels::cuda
