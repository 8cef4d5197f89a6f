#include "kernels/reference/dequant.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/quant_format.h"
#include "tests/support/quantize.h"
#include "tests/support/random.h"

namespace nibble::kernels::reference {
namespace {

// Reads tests/golden/dequant.bin (layout: tests/golden/make_dequant.py).
class GoldenFile {
 public:
  GoldenFile() {
    std::ifstream file(NIBBLE_SOURCE_DIR "/tests/golden/dequant.bin",
                       std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
  }

  bool AtEnd() const { return at_ == bytes_.size(); }

  template <typename T>
  std::vector<T> Take(size_t count) {
    std::vector<T> values(count);
    if (count * sizeof(T) > bytes_.size() - at_) {
      ADD_FAILURE() << "dequant.bin is cut short";
      at_ = bytes_.size();
      return values;
    }
    std::memcpy(values.data(), bytes_.data() + at_, count * sizeof(T));
    at_ += count * sizeof(T);
    return values;
  }

 private:
  std::string bytes_;
  size_t at_ = 0;
};

void ExpectSameBits(const std::vector<float>& actual,
                    const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(actual[i])) << i;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]),
                std::bit_cast<uint32_t>(expected[i]))
          << "element " << i << ": " << actual[i] << " is not " << expected[i];
    }
  }
}

TEST(Dequant, AgreesWithGgufBitForBit) {
  GoldenFile golden;
  std::vector<std::string> seen;
  while (!golden.AtEnd() && !HasFailure()) {
    const std::vector<char> padded = golden.Take<char>(8);
    seen.emplace_back(padded.data(), strnlen(padded.data(), padded.size()));
    SCOPED_TRACE(seen.back());
    const std::vector<int32_t> sizes = golden.Take<int32_t>(3);
    const auto format = FormatByName(seen.back());
    ASSERT_TRUE(format.has_value());
    ASSERT_EQ(Info(*format).block_bytes, sizes[1]);
    ASSERT_EQ(Info(*format).block_elements, sizes[2]);
    const int64_t k = static_cast<int64_t>(sizes[0]) * sizes[2];
    const auto blocks = golden.Take<std::byte>(RowBytes(*format, k));
    const auto expected = golden.Take<float>(k);
    std::vector<float> actual(expected.size());
    DequantizeRow(*format, blocks.data(), k, actual.data());
    ExpectSameBits(actual, expected);
  }
  EXPECT_EQ(seen.size(), kFormatTable.size());
}

class EveryDequantFormat : public testing::TestWithParam<FormatInfo> {};

INSTANTIATE_TEST_SUITE_P(Dequant, EveryDequantFormat,
                         testing::ValuesIn(kFormatTable), [](const auto& info) {
                           return std::string(info.param.name);
                         });

TEST_P(EveryDequantFormat, RowsNeedNoAlignmentAndNothingBeyondThem) {
  const QuantFormat format = GetParam().format;
  test::Random random(7);
  const int64_t k = 3 * GetParam().block_elements;
  const std::vector<std::byte> blocks =
      test::RandomBlocks(format, 1, k, random);
  std::vector<float> expected(k);
  DequantizeRow(format, blocks.data(), k, expected.data());
  for (const int shift : {1, 2, 3}) {
    // A buffer of just this size: a sanitizer sees a read past the row.
    std::vector<std::byte> shifted(blocks.size() + shift);
    std::memcpy(shifted.data() + shift, blocks.data(), blocks.size());
    std::vector<float> actual(k);
    DequantizeRow(format, shifted.data() + shift, k, actual.data());
    ExpectSameBits(actual, expected);
  }
}

TEST_P(EveryDequantFormat, OfNothingIsNothing) {
  float untouched = 3;
  DequantizeRow(GetParam().format, nullptr, 0, &untouched);
  EXPECT_EQ(untouched, 3);
}

TEST_P(EveryDequantFormat, QuantizedWeightsComeBackWithinTheBound) {
  const QuantFormat format = GetParam().format;
  const int64_t block = GetParam().block_elements;
  const int64_t k = 1024;
  constexpr double kHalfStep = 0x1p-25;  // of the subnormal halves
  test::Random random(11);
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<float> x = random.Normals(k, std::exp2(random.Normal() * 2));
    // Some blocks all of one sign, some of zeros.
    for (float& value : x) value = trial % 5 == 1 ? std::fabs(value) : value;
    for (float& value : x) value = trial % 5 == 2 ? -std::fabs(value) : value;
    std::fill(x.begin(), x.begin() + 256, trial % 5 == 3 ? 0.0f : x[0]);
    const test::TestWeight weight(format, 1, k, x);
    const std::vector<float> y = weight.Dequantized();
    for (int64_t begin = 0; begin < k; begin += block) {
      double greatest = 0;
      for (int64_t i = begin; i < begin + block; ++i) {
        greatest = std::fmax(greatest, std::fabs(x[i]));
      }
      for (int64_t i = begin; i < begin + block; ++i) {
        ASSERT_LE(std::fabs(static_cast<double>(x[i]) - y[i]),
                  test::QuantizationBound(format) * greatest + kHalfStep)
            << "trial " << trial << " element " << i;
      }
    }
  }
}

TEST_P(EveryDequantFormat, EveryBitCounts) {
  const QuantFormat format = GetParam().format;
  const int64_t block = GetParam().block_elements;
  // Rising weights from a negative one: no scale, minimum or step is 0.
  std::vector<float> x(block);
  for (int64_t i = 0; i < block; ++i) {
    x[i] = static_cast<float>(i % 32 + 1) - 16.5f;
  }
  std::vector<std::byte> bytes(GetParam().block_bytes);
  test::QuantizeRow(format, x, bytes.data());
  std::vector<float> before(block);
  DequantizeRow(format, bytes.data(), block, before.data());
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::vector<std::byte> flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    std::vector<float> after(block);
    DequantizeRow(format, flipped.data(), block, after.data());
    EXPECT_NE(std::memcmp(after.data(), before.data(), block * sizeof(float)),
              0)
        << "bit " << bit % 8 << " of byte " << bit / 8;
  }
}

TEST(DequantDeathTest, RefusesPartOfABlock) {
  std::vector<std::byte> row(18);
  std::vector<float> out(32);
  EXPECT_DEATH(DequantizeRow(QuantFormat::kQ4_0, row.data(), 31, out.data()),
               "31|block_elements");
}

}  // namespace
}  // namespace nibble::kernels::reference
