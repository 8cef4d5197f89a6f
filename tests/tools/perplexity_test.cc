#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference_backend.h"
#include "nlohmann/json.hpp"
#include "tests/model/naive_decoder.h"
#include "tests/support/gguf_writer.h"
#include "tools/perplexity/kl_base_file.h"
#include "tools/perplexity/log_softmax.h"
#include "tools/perplexity/statistics.h"
#include "tools/perplexity/window_runner.h"

namespace nibble::tools {
namespace {

using test::Bytes;
using ::testing::HasSubstr;

std::vector<float> RandomLogits(int32_t vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(vocab);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

// A base file, as llama-perplexity writes it. A local of the test.
struct BaseFile {
  int32_t context = 6;
  int32_t vocab = 5;
  int32_t windows = 2;
  std::vector<int32_t> tokens = {0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1};
  float scale = 0.5f;
  float minimum = -8;

  int32_t rows() const { return context - 1 - context / 2; }
  std::string Build() const {
    std::string bytes =
        "_logits_" + Bytes(context) + Bytes(vocab) + Bytes(windows);
    for (const int32_t token : tokens) bytes += Bytes(token);
    for (int32_t row = 0; row < windows * rows(); ++row) {
      bytes += Bytes(scale) + Bytes(minimum);
      // Codes 10 row + id, then the padding to an even count.
      for (int32_t id = 0; id < vocab + vocab % 2; ++id) {
        bytes += Bytes(static_cast<uint16_t>(10 * row + id));
      }
    }
    return bytes;
  }
};

std::string OpenError(const std::string& bytes) {
  const test::TemporaryFile file(bytes);
  const auto base = KlBaseFile::Open(file.path());
  EXPECT_EQ(base.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(base.status().message()), HasSubstr(file.path()));
  return std::string(base.status().message());
}

TEST(KlBaseFileTest, ReadsWhatWasWritten) {
  const BaseFile written;
  const test::TemporaryFile file(written.Build());
  const auto base = KlBaseFile::Open(file.path());
  ASSERT_TRUE(base.ok()) << base.status();
  EXPECT_EQ((*base)->context(), 6);
  EXPECT_EQ((*base)->vocab(), 5);
  EXPECT_EQ((*base)->windows(), 2);
  EXPECT_EQ((*base)->tokens(), written.tokens);
  ASSERT_EQ((*base)->rows(), 2);
  for (const int32_t window : {1, 0, 1}) {
    ASSERT_TRUE((*base)->ReadWindow(window).ok());
    for (int32_t row = 0; row < 2; ++row) {
      const KlBaseRow r = (*base)->Row(row);
      ASSERT_EQ(r.codes.size(), 5u);
      for (int id = 0; id < 5; ++id) {
        EXPECT_EQ(r.LogProb(id), 0.5f * (10 * (2 * window + row) + id) - 8);
      }
    }
  }
}

TEST(KlBaseFileTest, MissingFile) {
  EXPECT_EQ(KlBaseFile::Open("/no/base").status().code(),
            absl::StatusCode::kNotFound);
}

TEST(KlBaseFileTest, EveryTruncationIsRefused) {
  const std::string whole = BaseFile().Build();
  for (size_t size = 0; size < whole.size(); ++size) {
    const test::TemporaryFile file(whole.substr(0, size));
    EXPECT_FALSE(KlBaseFile::Open(file.path()).ok()) << size;
  }
  EXPECT_THAT(OpenError(whole + "x"), HasSubstr("but the file has"));
}

TEST(KlBaseFileTest, EveryCountIsChecked) {
  BaseFile file;
  EXPECT_THAT(OpenError("_logitz_" + file.Build().substr(8)),
              HasSubstr("does not begin with"));
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  constexpr int32_t kLeast = std::numeric_limits<int32_t>::min();
  for (const int32_t wrong : {kLeast, -1, 0, 1, 7, kMost}) {
    // Context, vocabulary, number of windows.
    for (const size_t at : {8, 12, 16}) {
      std::string bytes = file.Build();
      bytes.replace(at, 4, Bytes(wrong));
      OpenError(bytes);
    }
  }
  std::string all = file.Build();
  for (const size_t at : {8, 12, 16}) all.replace(at, 4, Bytes(kMost));
  EXPECT_THAT(OpenError(all), HasSubstr("too many"));
  file.tokens[3] = 5;
  EXPECT_THAT(OpenError(file.Build()), HasSubstr("token 3 is 5"));
  file.tokens[3] = -1;
  EXPECT_THAT(OpenError(file.Build()), HasSubstr("token 3 is -1"));
}

TEST(KlBaseFileTest, ScalesMustBeNumbers) {
  for (const float wrong :
       {-1.0f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    const test::TemporaryFile file(BaseFile{.scale = wrong}.Build());
    const auto base = KlBaseFile::Open(file.path());
    ASSERT_TRUE(base.ok()) << base.status();
    EXPECT_THAT(std::string((*base)->ReadWindow(1).message()),
                HasSubstr("window 1, row 0"));
  }
}

TEST(LogSoftmaxTest, AgreesWithTheDefinition) {
  const std::vector<float> logits = {1, 3, 3, -2};
  const LogSoftmax softmax = ComputeLogSoftmax(logits);
  EXPECT_EQ(softmax.top, 1);
  EXPECT_NEAR(softmax.log_sum,
              std::log(std::exp(1.0) + 2 * std::exp(3.0) + std::exp(-2.0)),
              1e-6);
  // Large logits do not overflow.
  EXPECT_NEAR(ComputeLogSoftmax(std::vector<float>{1000, 1000}).log_sum,
              1000 + std::log(2.0), 1e-3);
}

TEST(StatisticsTest, PerplexityOfKnownProbabilities) {
  PerplexityStatistics statistics;
  // Probabilities 1/2 and 1/8 of the targets: perplexity sqrt(2 * 8) = 4.
  const std::vector<float> half = {0, 0};
  const std::vector<float> eighth = {0, std::log(7.0f)};
  statistics.Add(half, ComputeLogSoftmax(half), 0);
  statistics.Add(eighth, ComputeLogSoftmax(eighth), 0);
  EXPECT_EQ(statistics.count(), 2);
  EXPECT_NEAR(statistics.Perplexity().value, 4, 1e-5);
  // The mean's error of two values a and b is |a - b| / 2.
  EXPECT_NEAR(statistics.Perplexity().error, 4 * std::log(4.0) / 2, 1e-5);
}

// Codes of `logits`' log-probabilities.
struct Coded {
  explicit Coded(const std::vector<float>& logits) {
    const double log_sum = ComputeLogSoftmax(logits).log_sum;
    const auto [least, most] =
        std::minmax_element(logits.begin(), logits.end());
    row.minimum = static_cast<float>(*least - log_sum);
    row.scale = (*most - *least) / 65535.0f;
    for (const float logit : logits) {
      codes.push_back(
          static_cast<uint16_t>(std::lround((logit - *least) / row.scale)));
    }
    row.codes = codes;
  }
  std::vector<uint16_t> codes;
  KlBaseRow row;
};

TEST(StatisticsTest, AModelIsNoDistanceFromItself) {
  KlStatistics statistics;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<float> logits = RandomLogits(100, seed);
    statistics.Add(logits, ComputeLogSoftmax(logits), 3, Coded(logits).row);
  }
  // Codes are half a step of 20 / 65535 off at most.
  EXPECT_NEAR(statistics.MeanKl().value, 0, 2e-4);
  EXPECT_NEAR(statistics.PerplexityRatio().value, 1, 2e-4);
  EXPECT_EQ(statistics.SameTop().value, 1);
  EXPECT_EQ(statistics.SameTop().error, 0);
}

TEST(StatisticsTest, KlAgreesWithTheDefinition) {
  KlStatistics statistics;
  double sum = 0;
  double greatest = 0;
  int same = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const std::vector<float> base = RandomLogits(40, seed);
    std::vector<float> ours = base;
    const std::vector<float> noise = RandomLogits(40, 1000 + seed);
    for (size_t i = 0; i < ours.size(); ++i) ours[i] += 0.3f * noise[i];
    const LogSoftmax p = ComputeLogSoftmax(base);
    const LogSoftmax q = ComputeLogSoftmax(ours);
    double kl = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
      const double log_p = base[i] - p.log_sum;
      kl += std::exp(log_p) * (log_p - (ours[i] - q.log_sum));
    }
    sum += kl;
    greatest = std::max(greatest, kl);
    same += p.top == q.top ? 1 : 0;
    statistics.Add(ours, q, 7, Coded(base).row);
  }
  EXPECT_NEAR(statistics.MeanKl().value, sum / 50, 1e-3);
  EXPECT_GT(statistics.MeanKl().error, 0);
  EXPECT_NEAR(statistics.KlPercentile(1), greatest, 1e-3);
  EXPECT_LT(statistics.KlPercentile(0.5), statistics.KlPercentile(0.99));
  EXPECT_NEAR(statistics.SameTop().value, same / 50.0, 1e-9);
  EXPECT_LT(same, 50);
}

TEST(StatisticsTest, ReportsHoldEveryNumber) {
  PerplexityStatistics perplexity;
  KlStatistics kl;
  const std::vector<float> logits = RandomLogits(30, 1);
  perplexity.Add(logits, ComputeLogSoftmax(logits), 2);
  kl.Add(logits, ComputeLogSoftmax(logits), 2, Coded(logits).row);
  const std::string plain = ToText(perplexity, nullptr);
  EXPECT_THAT(plain, HasSubstr("PPL = "));
  EXPECT_THAT(plain, Not(HasSubstr("KL")));
  EXPECT_THAT(ToText(perplexity, &kl), HasSubstr("mean KL"));
  const nlohmann::json json = ToJson(perplexity, &kl);
  EXPECT_EQ(json.at("tokens"), 1);
  EXPECT_EQ(json.at("same_top").at("value"), 1);
  EXPECT_FALSE(ToJson(perplexity, nullptr).contains("mean_kl"));
}

TEST(WindowRunnerTest, VisitsTheScoredPositionsOfEachWindow) {
  const test::TemporaryFile file(
      test::WriteSmallModel({.format = kernels::QuantFormat::kF32}).Build());
  const auto checkpoint = *model::Checkpoint::Open(file.path());
  const auto backend = kernels::MakeReferenceBackend();
  const auto runner = WindowRunner::Create(*checkpoint, *backend, 21);
  ASSERT_TRUE(runner.ok()) << runner.status();
  // Nothing of a window is left in the next one.
  for (const uint64_t seed : {1, 2}) {
    std::mt19937_64 random(seed);
    std::vector<int32_t> tokens(21);
    for (int32_t& token : tokens) {
      token = static_cast<int32_t>(random() % test::kSmallModelVocab);
    }
    const auto expected = test::NaiveLogits(*checkpoint, 10000, tokens);
    int32_t next = 10;
    (*runner)->Run(tokens, next,
                   [&](int32_t position, std::span<const float> logits) {
                     EXPECT_EQ(position, next++);
                     for (size_t i = 0; i < logits.size(); ++i) {
                       ASSERT_NEAR(logits[i], expected[position][i], 1e-4);
                     }
                   });
    EXPECT_EQ(next, 20);
  }
}

}  // namespace
}  // namespace nibble::tools
