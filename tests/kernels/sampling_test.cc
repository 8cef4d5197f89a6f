#include "kernels/sampling.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <set>

#include "kernels/philox.h"

namespace nibble::kernels {
namespace {

using Words = std::array<uint32_t, 4>;

// The known answers that the authors' Random123 library publishes
// (tests/kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(Philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                       {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(UniformAt, IsMadeOfTheFirstTwoWords) {
  // 0xe169c58d6627e8d5 >> 11, times 2^-53.
  EXPECT_EQ(UniformAt(0, 0),
            std::ldexp(static_cast<double>(0xe169c58d6627e8d5 >> 11), -53));
}

TEST(UniformAt, UsesEveryBitOfSeedAndPosition) {
  std::set<double> seen = {UniformAt(0, 0)};
  for (int bit = 0; bit < 64; ++bit) {
    EXPECT_TRUE(seen.insert(UniformAt(uint64_t{1} << bit, 0)).second);
    EXPECT_TRUE(seen.insert(UniformAt(0, uint64_t{1} << bit)).second);
  }
}

TEST(UniformAt, IsUniform) {
  // Chi-square over 64 cells, 63 degrees of freedom: 103.4 is exceeded once
  // in a thousand times; seed and so result are fixed.
  constexpr int kCells = 64;
  constexpr int kDraws = 64000;
  std::array<int, kCells> counts{};
  for (uint64_t position = 0; position < kDraws; ++position) {
    const double u = UniformAt(42, position);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    ++counts[static_cast<size_t>(u * kCells)];
  }
  double chi_square = 0;
  const double expected = static_cast<double>(kDraws) / kCells;
  for (const int count : counts) {
    chi_square += (count - expected) * (count - expected) / expected;
  }
  EXPECT_LT(chi_square, 103.4);
}

}  // namespace
}  // namespace nibble::kernels
