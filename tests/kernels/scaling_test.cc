#include "kernels/scaling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "absl/status/status.h"

namespace nibble::kernels {
namespace {

using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(MaxHistory, ForgetsWhatIsOld) {
  MaxHistory history(3);
  EXPECT_TRUE(history.empty());
  EXPECT_EQ(history.Greatest(), 0);
  for (const float greatest : {5.0f, 2.0f, 3.0f}) history.Record(greatest);
  EXPECT_EQ(history.Greatest(), 5);
  history.Record(1);
  EXPECT_EQ(history.Greatest(), 3);
  history.Record(1);
  history.Record(1);
  EXPECT_EQ(history.Greatest(), 1);
}

TEST(MaxHistory, LeavesOutWhatIsNotFinite) {
  MaxHistory history(2);
  history.Record(kNan);
  EXPECT_TRUE(history.empty());
  history.Record(4);
  history.Record(kInfinity);
  history.Record(kNan);
  EXPECT_EQ(history.Greatest(), 4);
}

TEST(TensorScale, CurrentIsTheTensorsOwn) {
  TensorScale scale = TensorScale::Current(Fp8::kE4m3);
  EXPECT_EQ(scale.ScaleFor(448), 1);
  EXPECT_EQ(scale.ScaleFor(44.8f), 0.1f);
  EXPECT_EQ(scale.ScaleFor(0), kLeastMax / 448);
  EXPECT_TRUE(std::isnan(scale.ScaleFor(kInfinity)));
  EXPECT_EQ(scale.ScaleFor(448), 1);
  EXPECT_EQ(TensorScale::Current(Fp8::kE5m2).ScaleFor(57344), 1);
}

TEST(TensorScale, DelayedFollowsOneCallLater) {
  TensorScale scale = TensorScale::Delayed(Fp8::kE4m3, 2);
  EXPECT_EQ(scale.ScaleFor(448), 1);   // the first: its own
  EXPECT_EQ(scale.ScaleFor(4480), 1);  // clips
  EXPECT_EQ(scale.ScaleFor(448), 10);  // has seen it
  EXPECT_EQ(scale.ScaleFor(448), 10);  // still in the history
  EXPECT_EQ(scale.ScaleFor(448), 1);   // forgotten
  EXPECT_EQ(scale.ScaleFor(kNan), 1);  // hidden by nothing: codes are NaN
  EXPECT_EQ(scale.ScaleFor(448), 1);
}

TEST(TensorScale, DelayedHasNoScaleForABadFirstTensor) {
  TensorScale scale = TensorScale::Delayed(Fp8::kE4m3, 2);
  EXPECT_TRUE(std::isnan(scale.ScaleFor(kNan)));
  EXPECT_EQ(scale.ScaleFor(448), 1);
}

TEST(TensorScale, StaticStays) {
  TensorScale scale = TensorScale::Static(Fp8::kE4m3, 896);
  for (const float greatest : {1.0f, 1e6f, 0.0f, kNan}) {
    EXPECT_EQ(scale.ScaleFor(greatest), 2);
  }
}

TEST(ActivationMaxima, KeepsTheGreatest) {
  ActivationMaxima maxima;
  EXPECT_TRUE(maxima.Observe("blk.0.attn_qkv", 3));
  EXPECT_TRUE(maxima.Observe("blk.0.attn_qkv", 2));
  EXPECT_FALSE(maxima.Observe("blk.0.attn_qkv", kInfinity));
  EXPECT_FALSE(maxima.Observe("blk.0.attn_qkv", kNan));
  EXPECT_FALSE(maxima.Observe("blk.1", -1));
  EXPECT_EQ(maxima.Find("blk.0.attn_qkv").value(), 3);
  EXPECT_EQ(maxima.size(), 1);
  const absl::Status missing = maxima.Find("blk.1").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("'blk.1'"));
}

TEST(ActivationMaxima, ComesBackFromItsText) {
  ActivationMaxima maxima;
  maxima.Observe("blk.0.ffn_down", 1.0f / 3);
  maxima.Observe("a name with spaces", 0x1p-120f);
  maxima.Observe("zero", 0);
  const auto parsed = ActivationMaxima::Parse(maxima.ToString());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->ToString(), maxima.ToString());
  EXPECT_EQ(parsed->Find("blk.0.ffn_down").value(), 1.0f / 3);
  EXPECT_EQ(parsed->Find("a name with spaces").value(), 0x1p-120f);
}

TEST(ActivationMaxima, NamesTheLineItCannotRead) {
  const std::string header = "nibble activation maxima 1\n";
  for (const char* line :
       {"1.5", "x blk.0", "inf blk.0", "nan blk.0", "-1 blk.0", "", "1 "}) {
    const auto parsed =
        ActivationMaxima::Parse(header + "1 ok\n" + line + "\n2 later\n");
    ASSERT_FALSE(parsed.ok()) << line;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("line 3"));
  }
  EXPECT_FALSE(ActivationMaxima::Parse(header + "1 twice\n2 twice\n").ok());
  EXPECT_FALSE(ActivationMaxima::Parse("").ok());
  EXPECT_FALSE(ActivationMaxima::Parse("1 blk.0\n").ok());
  EXPECT_TRUE(ActivationMaxima::Parse(header).ok());
}

TEST(ActivationMaxima, ComesBackFromItsFile) {
  const std::string path = testing::TempDir() + "maxima_test.txt";
  ActivationMaxima maxima;
  maxima.Observe("blk.0", 7);
  ASSERT_TRUE(maxima.Save(path).ok());
  maxima.Observe("blk.0", 8);
  ASSERT_TRUE(maxima.Save(path).ok());
  const auto loaded = ActivationMaxima::Load(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->Find("blk.0").value(), 8);
  const auto missing = ActivationMaxima::Load(path + ".not_there");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(maxima.Save("/no/such/folder/file").code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace nibble::kernels
