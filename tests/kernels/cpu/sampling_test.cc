// Sampling of the CPU backend gives what the reference gives.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/reference/reference_backend.h"
#include "tests/kernels/cpu/cpu_test_util.h"

namespace nibble::test {
namespace {

using kernels::SampleResult;
using kernels::SampleRow;
using kernels::SamplingParams;
using kernels::TensorView;

void ExpectSame(const std::vector<std::vector<float>>& logits,
                const std::vector<SampleRow>& rows) {
  const auto vocab = static_cast<int64_t>(logits[0].size());
  std::vector<float> flat;
  for (const auto& row : logits)
    flat.insert(flat.end(), row.begin(), row.end());
  const TensorView view =
      TensorView::F32(flat.data(), static_cast<int64_t>(logits.size()), vocab);
  std::vector<SampleResult> want(rows.size()), got(rows.size());
  for (SampleResult& result : got) {
    // What was there before must not show.
    result.token = 77;
    result.top.resize(3);
  }
  kernels::MakeReferenceBackend()->Sample(view, rows, want);
  MakeBackend(3)->Sample(view, rows, got);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(got[i].token, want[i].token) << i;
    EXPECT_EQ(got[i].finite, want[i].finite) << i;
    EXPECT_EQ(got[i].chosen.id, want[i].chosen.id) << i;
    EXPECT_EQ(got[i].chosen.logprob, want[i].chosen.logprob) << i;
    EXPECT_EQ(got[i].top.size(), want[i].top.size()) << i;
  }
}

TEST(CpuSamplingTest, GreedyRowsOfAnySize) {
  Random random(2);
  const SamplingParams greedy{.temperature = 0, .top_p = 0.1f, .seed = 9};
  for (const int64_t vocab : {1, 2, 15, 16, 17, 49, 1000}) {
    std::vector<std::vector<float>> logits;
    std::vector<SampleRow> rows;
    for (int i = 0; i < 40; ++i) {
      logits.push_back(random.Normals(vocab));
      const float best = 10;
      // Ties: the lowest id wins.
      for (int j = 0; j < 3; ++j) {
        logits.back()[random.Int(0, vocab - 1)] = best;
      }
      rows.push_back({.params = &greedy});
    }
    ExpectSame(logits, rows);
  }
}

TEST(CpuSamplingTest, BrokenLogits) {
  const SamplingParams greedy;
  std::vector<std::vector<float>> logits;
  std::vector<SampleRow> rows;
  for (const float bad : {kNaN, kInfinity, -kInfinity, -kNaN}) {
    for (const int64_t at : {0, 15, 16, 36}) {
      std::vector<float> row(37, 0.5f);
      row[at] = bad;
      logits.push_back(row);
      rows.push_back({.params = &greedy});
    }
  }
  logits.push_back(std::vector<float>(37, -kInfinity));
  rows.push_back({.params = &greedy});
  logits.push_back(logits.back());
  logits.back()[36] = -std::numeric_limits<float>::max();
  rows.push_back({.params = &greedy});
  ExpectSame(logits, rows);
}

TEST(CpuSamplingTest, EverythingElse) {
  Random random(4);
  const std::vector<int32_t> prompt = {1, 2, 3}, generated = {4, 4};
  const std::vector<int32_t> banned = {5};
  const std::vector<SamplingParams> params = {
      {.temperature = 0.8f, .top_k = 5, .seed = 1},
      {.temperature = 1.5f, .top_p = 0.5f, .seed = 2},
      {.repetition_penalty = 1.5f},
      {.presence_penalty = 3.0f},
      {.frequency_penalty = 3.0f},
      {.logit_bias = {{7, 100.0f}}},
      {},
  };
  std::vector<std::vector<float>> logits;
  std::vector<SampleRow> rows;
  for (const SamplingParams& p : params) {
    for (const int32_t num_logprobs : {-1, 0, 4}) {
      logits.push_back(random.Normals(100));
      logits.back()[5] = 9;  // banned, and the best of all
      rows.push_back({.params = &p,
                      .prompt_tokens = prompt,
                      .generated_tokens = generated,
                      .position = 2,
                      .banned = banned,
                      .num_logprobs = num_logprobs});
      logits.push_back(random.Normals(100));
      rows.push_back({.params = &p, .num_logprobs = num_logprobs});
      logits.push_back(random.Normals(100));
      rows.push_back({.params = &p, .num_logprobs = 0, .forced_token = 11});
    }
  }
  ExpectSame(logits, rows);
}

}  // namespace
}  // namespace nibble::test
