#include "engine/neural_runner.h"

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "engine/load.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/step_builder.h"

namespace nibble::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr KvBudget kBudget = {
    .page_bytes = 1000, .available_bytes = 4'000'000, .context_length = 100};

TEST(ChooseKvPagesTest, EnoughForAllSequencesWithinAQuarter) {
  // A context takes 7 pages of 16.
  EXPECT_EQ(*ChooseKvPages(kBudget, {.max_sequences = 3}), 21);
  EXPECT_EQ(*ChooseKvPages(kBudget, {.max_sequences = 1000}), 1000);
}

TEST(ChooseKvPagesTest, AtLeastOneContext) {
  KvBudget budget = kBudget;
  budget.available_bytes = 7999;
  EXPECT_EQ(*ChooseKvPages(budget, {.max_sequences = 64}), 7);
  budget.available_bytes = 6999;
  const auto pages = ChooseKvPages(budget, {.max_sequences = 64});
  EXPECT_EQ(pages.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(pages.status().message()),
              AllOf(HasSubstr("context of 100 tokens"), HasSubstr("7 KV pages"),
                    HasSubstr("hold 6"), HasSubstr("--max-context")));
}

TEST(ChooseKvPagesTest, WhatWasAskedForMustFit) {
  EXPECT_EQ(*ChooseKvPages(kBudget, {.kv_pages = 4000}), 4000);
  const auto pages = ChooseKvPages(kBudget, {.kv_pages = 4001});
  EXPECT_EQ(pages.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(pages.status().message()),
              AllOf(HasSubstr("kv_pages = 4001"), HasSubstr("1000 bytes"),
                    HasSubstr("4000 pages")));
}

TEST(ChooseKvPagesTest, HugeMachinesDoNotOverflow) {
  const KvBudget budget = {
      .page_bytes = 1,
      .available_bytes = std::numeric_limits<int64_t>::max(),
      .context_length = 1 << 30};
  EXPECT_EQ(*ChooseKvPages(budget, {.page_size = 1, .max_sequences = 1 << 30}),
            std::numeric_limits<int32_t>::max());
}

TEST(NeuralRunnerTest, InfoIsExact) {
  const test::TemporaryFile file(
      test::WriteSmallModel({.format = kernels::QuantFormat::kQ4_1}).Build());
  const auto runner = LoadRunner(file.path(), {.device = Device::kCpu,
                                               .threads = 2,
                                               .page_size = 8,
                                               .max_batch_rows = 32,
                                               .max_sequences = 200,
                                               .max_context = 100});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const RunnerInfo& info = (*runner)->info();
  EXPECT_EQ(info.name, "small random model");
  EXPECT_EQ(info.architecture, "llama");
  EXPECT_EQ(info.backend, "cpu");
  EXPECT_EQ(info.vocab_size, test::kSmallModelVocab);
  EXPECT_EQ(info.context_length, 100);
  EXPECT_EQ(info.page_size, 8);
  EXPECT_EQ(info.pages, 200 * 13);
  EXPECT_EQ(info.max_batch_rows, 32);
  EXPECT_GE(info.max_logit_rows, 200);
  // 13 pages of 8 tokens, 2 layers, keys and values, 2 heads of 16 in FP16.
  EXPECT_EQ(info.kv_bytes, int64_t{info.pages} * 8 * 2 * 2 * 2 * 16 * 2);
  EXPECT_THAT(info.plan, Not(IsEmpty()));
  EXPECT_EQ((*runner)->tokenizer().vocab_size(), info.vocab_size);
}

TEST(NeuralRunnerTest, ContextIsTheModelsWhenLessIsNotAsked) {
  const test::TemporaryFile file(test::WriteSmallModel({}).Build());
  for (const int32_t max_context : {0, 256, 100000}) {
    const auto runner = LoadRunner(file.path(), {.device = Device::kReference,
                                                 .threads = 1,
                                                 .max_sequences = 2,
                                                 .max_context = max_context});
    ASSERT_TRUE(runner.ok()) << runner.status();
    EXPECT_EQ((*runner)->info().context_length, 256);
    EXPECT_EQ((*runner)->info().pages, 2 * 16);
  }
}

// Steps a prompt and two generated tokens; returns the three choices.
std::vector<int32_t> Generate(ModelRunner& runner) {
  const std::vector<int32_t> pages = {1, 0};
  const kernels::SamplingParams greedy;
  std::vector<int32_t> tokens = {5, 77, 200, 13};
  std::vector<int32_t> chosen;
  int32_t computed = 0;
  for (int step = 0; step < 3; ++step) {
    model::Batch batch;
    test::AppendShare(batch, 16,
                      {.tokens = std::span(tokens).subspan(computed),
                       .first = computed,
                       .pages = pages,
                       .logits = test::Logits::kLast});
    if (step > 0) batch.decode_rows = 1;
    computed = static_cast<int32_t>(tokens.size());
    const kernels::SampleRow row = {.params = &greedy};
    kernels::SampleResult result;
    runner.Step(batch, {&row, 1}, {&result, 1});
    EXPECT_TRUE(result.finite);
    chosen.push_back(result.token);
    tokens.push_back(result.token);
  }
  return chosen;
}

TEST(NeuralRunnerTest, StepSamplesWhatForwardComputed) {
  const test::TemporaryFile file(
      test::WriteSmallModel({.format = kernels::QuantFormat::kQ8_0}).Build());
  const LoadOptions options = {.threads = 2, .max_sequences = 1};
  std::vector<std::vector<int32_t>> texts;
  for (const Device device : {Device::kReference, Device::kCpu}) {
    LoadOptions of_device = options;
    of_device.device = device;
    const auto runner = LoadRunner(file.path(), of_device);
    ASSERT_TRUE(runner.ok()) << runner.status();
    texts.push_back(Generate(**runner));
    for (const int32_t token : texts.back()) {
      EXPECT_GE(token, 0);
      EXPECT_LT(token, test::kSmallModelVocab);
    }
    // The same again: nothing of the first run is left.
    EXPECT_EQ(Generate(**runner), texts.back());
  }
  EXPECT_EQ(texts[0][0], texts[1][0]);
}

TEST(LoadRunnerTest, AutoTakesTheCpuAndCudaSaysWhyNot) {
  const test::TemporaryFile file(test::WriteSmallModel({}).Build());
  const auto runner =
      LoadRunner(file.path(), {.threads = 1, .max_sequences = 1});
  ASSERT_TRUE(runner.ok()) << runner.status();
  EXPECT_EQ((*runner)->info().backend, "cpu");
  const auto cuda = LoadRunner(file.path(), {.device = Device::kCuda});
  EXPECT_EQ(cuda.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(cuda.status().message()),
              HasSubstr("no CUDA backend"));
}

TEST(LoadRunnerTest, NamesTheOption) {
  const test::TemporaryFile file(test::WriteSmallModel({}).Build());
  const auto message = [&](const LoadOptions& options) {
    const auto runner = LoadRunner(file.path(), options);
    EXPECT_EQ(runner.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(runner.status().message());
  };
  EXPECT_THAT(message({.threads = -1}), HasSubstr("threads = -1"));
  EXPECT_THAT(message({.kv_pages = -1}), HasSubstr("kv_pages = -1"));
  EXPECT_THAT(message({.page_size = 0}), HasSubstr("page_size = 0"));
  EXPECT_THAT(message({.max_batch_rows = 0}), HasSubstr("max_batch_rows = 0"));
  EXPECT_THAT(message({.max_sequences = 0}), HasSubstr("max_sequences = 0"));
  EXPECT_THAT(message({.max_context = -5}), HasSubstr("max_context = -5"));
}

TEST(LoadRunnerTest, MissingFilesAreNamed) {
  for (const std::string path : {"/no/model.gguf", "scripted:/no/model.json"}) {
    const auto runner = LoadRunner(path, {});
    EXPECT_FALSE(runner.ok());
    EXPECT_THAT(std::string(runner.status().message()), HasSubstr("/no/model"));
  }
}

TEST(LoadRunnerTest, PagesThatDoNotFitTheMachine) {
  const test::TemporaryFile file(test::WriteSmallModel({}).Build());
  const auto runner = LoadRunner(
      file.path(), {.kv_pages = std::numeric_limits<int32_t>::max()});
  EXPECT_EQ(runner.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(runner.status().message()),
              HasSubstr("kv_pages = 2147483647"));
}

}  // namespace
}  // namespace nibble::engine
