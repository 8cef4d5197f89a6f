// Short ways to sample one row, for the tests of the sampling rules.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include "kernels/reference/sampling.h"

namespace nibble::kernels::reference {

inline SampleResult SampleOnce(const std::vector<float>& logits,
                               const SampleRow& row) {
  Sampler sampler;
  SampleResult result;
  sampler.Sample(logits, row, &result);
  return result;
}

inline SampleResult SampleOnce(const std::vector<float>& logits,
                               const SamplingParams& params) {
  return SampleOnce(logits, SampleRow{.params = &params});
}

// Which ids come out of 2,000 draws, and how often.
inline std::map<int32_t, int> Draws(const std::vector<float>& logits,
                                    const SamplingParams& params,
                                    int draws = 2000) {
  std::map<int32_t, int> counts;
  Sampler sampler;
  SampleResult result;
  for (int position = 0; position < draws; ++position) {
    sampler.Sample(
        logits,
        {.params = &params, .position = static_cast<uint64_t>(position)},
        &result);
    EXPECT_TRUE(result.finite);
    ++counts[result.token];
  }
  return counts;
}

inline std::vector<int32_t> Kept(const std::vector<float>& logits,
                                 const SamplingParams& params) {
  std::vector<int32_t> ids;
  for (const auto& [id, count] : Draws(logits, params)) ids.push_back(id);
  return ids;
}

// Logits whose softmax is p.
inline std::vector<float> LogsOf(const std::vector<double>& p) {
  std::vector<float> logits;
  for (const double value : p) {
    logits.push_back(static_cast<float>(std::log(value)));
  }
  return logits;
}

}  // namespace nibble::kernels::reference
