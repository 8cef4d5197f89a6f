#include "model/rope_scaling.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

namespace nibble::model {
namespace {

// A float rounds a frequency once.
constexpr double kUlp = std::numeric_limits<float>::epsilon();

double Plain(const RopeSpec& spec, int pair) {
  return std::pow(spec.frequency_base, -2.0 * pair / spec.rotary_dims);
}

TEST(RopeScaling, None) {
  const RopeSpec spec = {.rotary_dims = 64, .frequency_base = 100000};
  const kernels::RopeParams rope = MakeRope(spec);
  ASSERT_EQ(rope.inverse_frequency.size(), 32u);
  EXPECT_EQ(rope.attention_factor, 1.0f);
  EXPECT_EQ(rope.inverse_frequency[0], 1.0f);
  for (int i = 0; i < 32; ++i) {
    EXPECT_NEAR(rope.inverse_frequency[i], Plain(spec, i),
                kUlp * Plain(spec, i));
  }
}

TEST(RopeScaling, NoneIgnoresTheFactor) {
  const kernels::RopeParams rope = MakeRope({.rotary_dims = 8, .factor = 4});
  EXPECT_EQ(rope.inverse_frequency[0], 1.0f);
}

TEST(RopeScaling, Linear) {
  const RopeSpec spec = {.rotary_dims = 16,
                         .scaling = RopeScaling::kLinear,
                         .factor = 8,
                         .attention_factor = 0.5};
  const kernels::RopeParams rope = MakeRope(spec);
  EXPECT_EQ(rope.attention_factor, 0.5f);
  for (int i = 0; i < 8; ++i) {
    EXPECT_NEAR(rope.inverse_frequency[i], Plain(spec, i) / 8,
                kUlp * Plain(spec, i));
  }
}

TEST(RopeScaling, FrequencyDivisors) {
  RopeSpec spec = {.rotary_dims = 8, .frequency_base = 500000};
  spec.frequency_divisors = {1, 1.5f, 4, 8};
  const kernels::RopeParams rope = MakeRope(spec);
  for (int i = 0; i < 4; ++i) {
    const double expected = Plain(spec, i) / spec.frequency_divisors[i];
    EXPECT_NEAR(rope.inverse_frequency[i], expected, kUlp * expected);
  }
}

// The angles of position 1 that ggml_rope_ext turns by (64 dimensions, base
// 10000, factor 4, original context 2048, betas 32 and 1), taken from the
// sines and cosines it computes.
constexpr std::array<double, 32> kYarnAngles = {1,
                                                0.7498942,
                                                0.5623413,
                                                0.4216966,
                                                0.3162278,
                                                0.2371374,
                                                0.1778279,
                                                0.1333522,
                                                0.1,
                                                0.07066311,
                                                0.04974558,
                                                0.03487106,
                                                0.02432521,
                                                0.01687324,
                                                0.01162721,
                                                0.007949839,
                                                0.005384614,
                                                0.00360526,
                                                0.002379136,
                                                0.001540814,
                                                0.0009730085,
                                                0.0005928434,
                                                0.0004445698,
                                                0.0003333804,
                                                0.00025,
                                                0.0001874735,
                                                0.0001405853,
                                                0.0001054241,
                                                7.905692e-05,
                                                5.928433e-05,
                                                4.445697e-05,
                                                3.333803e-05};

TEST(RopeScaling, YarnAgreesWithGgml) {
  const kernels::RopeParams rope = MakeRope({.rotary_dims = 64,
                                             .frequency_base = 10000,
                                             .scaling = RopeScaling::kYarn,
                                             .factor = 4,
                                             .original_context = 2048});
  EXPECT_NEAR(rope.attention_factor, 1 + 0.1 * std::log(4.0), kUlp);
  for (int i = 0; i < 32; ++i) {
    // Both sides carry float32 powers, products and arc tangents: some
    // roundings, i of them in ggml's running product.
    EXPECT_NEAR(rope.inverse_frequency[i], kYarnAngles[i],
                (8 + i) * kUlp * kYarnAngles[i])
        << i;
  }
}

TEST(RopeScaling, YarnOfFactorOneIsPlain) {
  const RopeSpec spec = {.rotary_dims = 32,
                         .scaling = RopeScaling::kYarn,
                         .factor = 1,
                         .original_context = 4096};
  const kernels::RopeParams rope = MakeRope(spec);
  EXPECT_EQ(rope.attention_factor, 1.0f);
  for (int i = 0; i < 16; ++i) {
    EXPECT_NEAR(rope.inverse_frequency[i], Plain(spec, i),
                kUlp * Plain(spec, i));
  }
}

TEST(RopeScaling, YarnOfAnyContextIsFiniteAndBetweenTheTwo) {
  for (const int32_t context : {1, 7, 100, 1 << 26}) {
    for (const double base : {1.001, 10000.0, 1e12}) {
      const RopeSpec spec = {.rotary_dims = 64,
                             .frequency_base = base,
                             .scaling = RopeScaling::kYarn,
                             .factor = 16,
                             .original_context = context};
      const kernels::RopeParams rope = MakeRope(spec);
      for (int i = 0; i < 32; ++i) {
        EXPECT_LE(rope.inverse_frequency[i], Plain(spec, i) * (1 + kUlp));
        EXPECT_GE(rope.inverse_frequency[i], Plain(spec, i) / 16 * (1 - kUlp));
      }
    }
  }
}

}  // namespace
}  // namespace nibble::model
