#include "kernels/quant_format.h"

#include <gtest/gtest.h>

namespace nibble::kernels {
namespace {

TEST(QuantFormat, RowsStandAtTheirFormat) {
  for (const FormatInfo& row : kFormatTable) {
    EXPECT_EQ(&Info(row.format), &row) << row.name;
    EXPECT_EQ(FormatByName(row.name), row.format);
    EXPECT_EQ(row.block_elements % row.group_elements, 0) << row.name;
    EXPECT_EQ(RowBytes(row.format, 4 * row.block_elements),
              4 * row.block_bytes);
  }
}

TEST(QuantFormat, GroupRowsStandAtTheirFormat) {
  for (const FormatInfo& row : kGroupFormatTable) {
    EXPECT_EQ(&Info(row.format), &row) << row.name;
    EXPECT_EQ(FormatByName(row.name), row.format);
    EXPECT_FALSE(IsBlockFormat(row.format));
    // All have 4-bit codes.
    EXPECT_EQ(row.block_elements, 2 * row.block_bytes) << row.name;
  }
  for (const FormatInfo& row : kFormatTable) {
    EXPECT_TRUE(IsBlockFormat(row.format)) << row.name;
  }
  EXPECT_EQ(kNumFormats, 17);
}

TEST(QuantFormat, UnknownNamesAreNothing) {
  EXPECT_EQ(FormatByName("q3_k"), std::nullopt);
  EXPECT_EQ(FormatByName("Q4_0"), std::nullopt);
  EXPECT_EQ(FormatByName(""), std::nullopt);
}

}  // namespace
}  // namespace nibble::kernels
