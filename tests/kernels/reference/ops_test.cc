// The scalar operations against their definitions, on odd shapes.
#include "kernels/reference/ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <numbers>
#include <utility>
#include <vector>

#include "kernels/reference/half.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace nibble::kernels::reference {
namespace {

using test::GreatestError;
using test::kEpsilonF32;
using test::Random;
using test::RelativeError;

TEST(Dot, SumsEveryProduct) {
  Random random(1);
  for (const int64_t k : {0, 1, 7, 8, 9, 13, 96, 130, 1001}) {
    const std::vector<float> a = random.Normals(k);
    const std::vector<float> b = random.Normals(k);
    double expected = 0;
    double magnitude = 0;
    for (int64_t i = 0; i < k; ++i) {
      expected += static_cast<double>(a[i]) * b[i];
      magnitude += std::fabs(static_cast<double>(a[i]) * b[i]);
    }
    const double bound = static_cast<double>(k) * 0x1p-52 * magnitude;
    EXPECT_NEAR(Dot(a.data(), b.data(), k), expected, bound);
    const std::vector<double> wide_a(a.begin(), a.end());
    const std::vector<double> wide_b(b.begin(), b.end());
    EXPECT_EQ(Dot(wide_a.data(), wide_b.data(), k), Dot(a.data(), b.data(), k));
  }
}

TEST(RmsNormRow, DividesByTheRootOfTheMeanSquare) {
  const std::vector<float> x = {3, -4, 0, 5, 0};  // mean square 10
  const std::vector<float> weight = {1, 2, 3, -1, 5};
  std::vector<float> out(5);
  RmsNormRow(x.data(), weight.data(), 6, 5, out.data());  // sqrt(16) = 4
  EXPECT_EQ(out, (std::vector<float>{0.75f, -2, 0, -1.25f, 0}));
}

TEST(RmsNormRow, StandsZerosAndLargeValues) {
  std::vector<float> out(3);
  const std::vector<float> ones(3, 1.0f);
  RmsNormRow(std::vector<float>(3, 0.0f).data(), ones.data(), 1e-5f, 3,
             out.data());
  EXPECT_EQ(out, std::vector<float>(3, 0.0f));
  // The squares do not fit FP32.
  RmsNormRow(std::vector<float>(3, 1e30f).data(), ones.data(), 1e-5f, 3,
             out.data());
  EXPECT_LE(GreatestError(out, ones), 2 * kEpsilonF32);
}

RopeParams Rope(std::vector<float> inverse_frequency,
                RopeParams::Pairing pairing) {
  return {.inverse_frequency = std::move(inverse_frequency),
          .pairing = pairing};
}

TEST(RopeRow, TurnsThePairsItNames) {
  const float quarter = std::numbers::pi_v<float> / 2;
  // At position 1 pair 0 turns by 90 degrees, pair 1 by 180.
  const std::vector<float> frequencies = {quarter, 2 * quarter};
  std::vector<float> row = {1, 2, 3, 4, 9};
  RopeRow(Rope(frequencies, RopeParams::Pairing::kAdjacent), 1, 1, 5,
          row.data());
  EXPECT_LE(GreatestError(row, std::vector<float>{-2, 1, -3, -4, 9}), 1e-6);
  row = {1, 2, 3, 4, 9};
  RopeRow(Rope(frequencies, RopeParams::Pairing::kHalves), 1, 1, 5, row.data());
  EXPECT_LE(GreatestError(row, std::vector<float>{-3, -2, 1, -4, 9}), 1e-6);
}

TEST(RopeRow, AtPositionZeroOnlyScales) {
  Random random(2);
  const std::vector<float> x = random.Normals(2 * 6);
  RopeParams rope = Rope({1, 0.5f, 0.25f}, RopeParams::Pairing::kHalves);
  std::vector<float> row = x;
  RopeRow(rope, 0, 2, 6, row.data());
  EXPECT_EQ(row, x);
  rope.attention_factor = 2;
  RopeRow(rope, 0, 2, 6, row.data());
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(row[i], 2 * x[i]);
}

TEST(RopeRow, ProductsDependOnTheDistanceOnly) {
  Random random(3);
  const int32_t dim = 10;
  for (const auto pairing :
       {RopeParams::Pairing::kAdjacent, RopeParams::Pairing::kHalves}) {
    const RopeParams rope = Rope({1, 0.3f, 0.1f, 0.03f}, pairing);  // 8 of 10
    const std::vector<float> q = random.Normals(dim);
    const std::vector<float> k = random.Normals(dim);
    const auto product = [&](int32_t q_position, int32_t k_position) {
      std::vector<float> turned_q = q;
      std::vector<float> turned_k = k;
      RopeRow(rope, q_position, 1, dim, turned_q.data());
      RopeRow(rope, k_position, 1, dim, turned_k.data());
      return Dot(turned_q.data(), turned_k.data(), dim);
    };
    const double bound = 8 * kEpsilonF32 * dim;
    EXPECT_NEAR(product(5, 2), product(1003, 1000), bound);
    EXPECT_GT(std::fabs(product(5, 2) - product(5, 3)), bound);
  }
}

// Pages in a host array, filled by WriteKvRow.
class Pages {
 public:
  Pages(int32_t pages, int32_t page_size, int32_t kv_heads, int32_t head_dim,
        DType dtype)
      : k_(pages * page_size * kv_heads * head_dim),
        v_(k_.size()),
        view_{.k = k_.data(),
              .v = v_.data(),
              .dtype = dtype,
              .page_size = page_size,
              .kv_heads = kv_heads,
              .head_dim = head_dim} {}

  const KvLayerView& view() const { return view_; }

 private:
  std::vector<float> k_;  // large enough for every dtype
  std::vector<float> v_;
  KvLayerView view_;
};

TEST(WriteKvRow, RoundsToThePagesType) {
  const std::vector<float> k = {1.0f, 1.0f + 0x1p-12f};
  const std::vector<float> v = {-2.0f, 65520.0f};
  Pages half(2, 3, 1, 2, DType::kF16);
  WriteKvRow(k.data(), v.data(), 4, half.view());
  const auto* k16 = static_cast<const uint16_t*>(half.view().k) + 4 * 2;
  const auto* v16 = static_cast<const uint16_t*>(half.view().v) + 4 * 2;
  EXPECT_EQ(k16[0], FloatToHalf(k[0]));
  EXPECT_EQ(k16[1], FloatToHalf(1.0f));
  EXPECT_EQ(v16[1], FloatToHalf(v[1]));
  EXPECT_EQ(k16[-1], 0);
  Pages brain(2, 3, 1, 2, DType::kBF16);
  WriteKvRow(k.data(), v.data(), 5, brain.view());
  EXPECT_EQ(static_cast<const uint16_t*>(brain.view().v)[5 * 2],
            FloatToBFloat16(v[0]));
}

// Attention by its definition over the keys and values as they were given.
std::vector<float> NaiveAttention(const std::vector<float>& q,
                                  const std::vector<std::vector<float>>& k,
                                  const std::vector<std::vector<float>>& v,
                                  const AttentionShape& shape) {
  std::vector<float> out(q.size());
  const int32_t group = shape.heads / shape.kv_heads;
  for (int32_t head = 0; head < shape.heads; ++head) {
    const int32_t q_at = head * shape.head_dim;
    const int32_t kv_at = head / group * shape.head_dim;
    std::vector<long double> weights;
    long double total = 0;
    for (const std::vector<float>& key : k) {
      long double score = 0;
      for (int32_t d = 0; d < shape.head_dim; ++d) {
        score += static_cast<long double>(q[q_at + d]) * key[kv_at + d];
      }
      weights.push_back(std::exp(score * shape.scale));
      total += weights.back();
    }
    for (int32_t d = 0; d < shape.head_dim; ++d) {
      long double sum = 0;
      for (size_t t = 0; t < v.size(); ++t) {
        sum += weights[t] / total * v[t][kv_at + d];
      }
      out[q_at + d] = static_cast<float>(sum);
    }
  }
  return out;
}

TEST(AttentionOneRow, AgreesWithItsDefinition) {
  Random random(4);
  const std::vector<int32_t> page_ids = {6, 0, 3, 5};  // page size 3
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int32_t group : {1, 3}) {
      const AttentionShape shape = {
          .heads = 2 * group, .kv_heads = 2, .head_dim = 5, .scale = 0.6f};
      Pages pages(7, 3, 2, 5, dtype);
      std::vector<std::vector<float>> k;
      std::vector<std::vector<float>> v;
      for (int32_t position = 0; position < 11; ++position) {
        const auto rounded = [&](std::vector<float> x) {
          for (float& value : x) {
            if (dtype == DType::kF16) value = HalfToFloat(FloatToHalf(value));
            if (dtype == DType::kBF16) {
              value = BFloat16ToFloat(FloatToBFloat16(value));
            }
          }
          return x;
        };
        k.push_back(rounded(random.Normals(10)));
        v.push_back(rounded(random.Normals(10)));
        const int64_t slot = page_ids[position / 3] * 3 + position % 3;
        WriteKvRow(k.back().data(), v.back().data(), slot, pages.view());
        const std::vector<float> q = random.Normals(shape.heads * 5);
        std::vector<float> out(q.size());
        AttentionOneRow(
            {.q = q.data(), .position = position, .page_ids = page_ids},
            pages.view(), shape, out.data());
        EXPECT_LE(RelativeError(out, NaiveAttention(q, k, v, shape)),
                  kEpsilonF32)
            << "position " << position;
      }
    }
  }
}

TEST(AttentionOneRow, StandsScoresBeyondTheExponential) {
  const AttentionShape shape = {
      .heads = 1, .kv_heads = 1, .head_dim = 1, .scale = 1};
  Pages pages(1, 4, 1, 1, DType::kF32);
  const std::vector<float> keys = {1, 3, 2};
  for (int64_t slot = 0; slot < 3; ++slot) {
    const auto value = static_cast<float>(slot);
    WriteKvRow(&keys[slot], &value, slot, pages.view());
  }
  const float q = 1e6f;
  const std::vector<int32_t> page_ids = {0};
  float out = -1;
  AttentionOneRow({.q = &q, .position = 2, .page_ids = page_ids}, pages.view(),
                  shape, &out);
  EXPECT_EQ(out, 1.0f);
}

TEST(AttentionOneRowDeathTest, NeedsAPageForEveryPosition) {
  const AttentionShape shape = {
      .heads = 1, .kv_heads = 1, .head_dim = 1, .scale = 1};
  Pages pages(2, 2, 1, 1, DType::kF32);
  const float q = 1;
  float out = 0;
  const std::vector<int32_t> page_ids = {0};
  EXPECT_DEATH(AttentionOneRow({.q = &q, .position = 2, .page_ids = page_ids},
                               pages.view(), shape, &out),
               "page_ids");
}

TEST(SiluMulRow, IsItsDefinition) {
  const std::vector<float> gate_up = {0,  1,  -1, 1000, -1000,  //
                                      10, 10, 10, 2,    2};
  std::vector<float> out(5);
  SiluMulRow(gate_up.data(), 5, out.data());
  const auto silu = [](double x) {
    return static_cast<float>(10 * x / (1 + std::exp(-x)));
  };
  EXPECT_EQ(out, (std::vector<float>{0, silu(1), silu(-1), 2000, -0.0f}));
}

}  // namespace
}  // namespace nibble::kernels::reference
