// That what the planning of W4A16 launches counts on has been compiled.
#include <gtest/gtest.h>

#include <set>

#include "kernels/cuda/linear/inst/small_kernels.h"
#include "tests/kernels/cuda/w4_devices.h"

namespace nibble::kernels::cuda {
namespace {

TEST(SmallKernel, ThereIsOneForEveryFormatAndVariant) {
  std::set<const void*> kernels;
  for (const W4Layout& layout : test::TestLayouts()) {
    for (const DType x_dtype : {DType::kBF16, DType::kF16}) {
      for (const SmallVariant& variant : kSmallVariants) {
        const void* kernel = SmallKernel(layout, x_dtype, variant);
        EXPECT_NE(kernel, nullptr);
        EXPECT_TRUE(kernels.insert(kernel).second);
      }
    }
  }
  EXPECT_EQ(kernels.size(),
            test::TestLayouts().size() * 2 * kSmallVariants.size());
}

TEST(SmallKernel, ThereIsNoneForOtherLayouts) {
  EXPECT_EQ(SmallKernel({W4Code::kInt4, W4Scale::kScaleMin, 16}, DType::kBF16,
                        kSmallVariants[0]),
            nullptr);
}

TEST(SmallKernelDeathTest, NeedsATypeAndAVariantThatAreCompiled) {
  const W4Layout layout;
  EXPECT_DEATH(SmallKernel(layout, DType::kF32, kSmallVariants[0]), "x_dtype");
  EXPECT_DEATH(SmallKernel(layout, DType::kBF16, {3, 2, XSource::kShared}),
               "kSmallVariants");
}

}  // namespace
}  // namespace nibble::kernels::cuda
