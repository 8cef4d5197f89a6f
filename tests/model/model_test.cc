#include "model/model.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device.h"
#include "tests/model/naive_decoder.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/step_builder.h"

namespace nibble::model {
namespace {

using kernels::Device;
using kernels::QuantFormat;
using test::AppendShare;
using test::GgufWriter;
using test::Logits;
using test::WriteSmallModel;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kRopeBase = 10000;  // of WriteSmallModel
constexpr int32_t kCacheTokens = 512;

using Rows = std::vector<std::vector<float>>;

// A small model on a backend with its cache. A local of the test.
struct Fixture {
  Fixture(const GgufWriter& writer, Device device, int32_t page_size = 16)
      : file(writer.Build()) {
    auto opened = Checkpoint::Open(file.path());
    NIBBLE_CHECK(opened.ok());
    checkpoint = *std::move(opened);
    backend = *kernels::MakeBackend(device, 2);
    auto loaded = Model::Load(*checkpoint, *backend,
                              {.max_batch_rows = 128, .max_logit_rows = 128});
    NIBBLE_CHECK(loaded.ok());
    model = *std::move(loaded);
    cache = *KvCache::Create(checkpoint->config(), *backend,
                             kCacheTokens / page_size, page_size);
  }

  Rows Forward(const Batch& batch) {
    const kernels::TensorView logits = model->Forward(batch, *cache);
    Rows rows;
    for (int64_t i = 0; i < logits.rows; ++i) {
      rows.emplace_back(logits.RowF32(i), logits.RowF32(i) + logits.cols);
    }
    return rows;
  }

  // Logits of `tokens` from position `first` on, as prompt rows.
  Rows Prompt(std::span<const int32_t> tokens, std::span<const int32_t> pages,
              int32_t first = 0) {
    Batch batch;
    AppendShare(batch, cache->page_size(),
                {.tokens = tokens, .first = first, .pages = pages});
    return Forward(batch);
  }

  test::TemporaryFile file;
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<kernels::Backend> backend;
  std::unique_ptr<Model> model;
  std::unique_ptr<KvCache> cache;
};

std::vector<int32_t> RandomTokens(int32_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(random() % test::kSmallModelVocab);
  }
  return tokens;
}

// Pages first, first + 1, ...
std::vector<int32_t> PagesFrom(int32_t first, int32_t count) {
  std::vector<int32_t> pages(count);
  std::iota(pages.begin(), pages.end(), first);
  return pages;
}

// ||a - b|| / ||b||
template <typename A, typename B>
double RelativeError(const std::vector<A>& a, const std::vector<B>& b) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / norm);
}

class ModelTest : public ::testing::TestWithParam<Device> {
 protected:
  // The reference rounds to FP32 between operations: a few dozen epsilons
  // (6e-8) through two layers. The CPU rounds activations to 8 bits, half a
  // step of 1/127 of the greatest of 32: about 0.5% noise per layer input,
  // eight of which add up in two layers.
  double tolerance() const {
    return GetParam() == Device::kReference ? 1e-5 : 3e-2;
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, ModelTest,
                         ::testing::Values(Device::kReference, Device::kCpu),
                         [](const auto& info) {
                           return info.param == Device::kCpu ? "Cpu"
                                                             : "Reference";
                         });

TEST_P(ModelTest, ChunkedPromptIsTheSameBits) {
  const auto tokens = RandomTokens(53, 1);
  const auto pages = PagesFrom(0, 8);
  const GgufWriter writer = WriteSmallModel({});
  Fixture whole(writer, GetParam());
  const Rows expected = whole.Prompt(tokens, pages);
  ASSERT_EQ(expected.size(), tokens.size());

  Fixture chunked(writer, GetParam());
  Rows rows;
  int32_t first = 0;
  for (const int32_t count : {1, 5, 16, 2, 29}) {
    const Rows part =
        chunked.Prompt(std::span(tokens).subspan(first, count), pages, first);
    rows.insert(rows.end(), part.begin(), part.end());
    first += count;
  }
  EXPECT_EQ(rows, expected);
}

// Lengths of sequences that share a step.
constexpr int32_t kLengths[] = {1, 3, 17, 8, 40};
constexpr int32_t kPagesEach = 4;
constexpr int32_t kDecodeSteps = 5;

// The last logits of each sequence: after its prompt, then after each of the
// generated tokens.
std::vector<Rows> RunTogether(Fixture& fixture,
                              const std::vector<std::vector<int32_t>>& all) {
  std::vector<Rows> results(all.size());
  const auto book = [&](const Batch& batch) {
    const Rows rows = fixture.Forward(batch);
    for (size_t s = 0; s < all.size(); ++s) results[s].push_back(rows[s]);
  };
  for (int32_t step = 0; step <= kDecodeSteps; ++step) {
    Batch batch;
    for (size_t s = 0; s < all.size(); ++s) {
      const auto prompt = static_cast<int32_t>(all[s].size()) - kDecodeSteps;
      const std::span<const int32_t> tokens(all[s]);
      const auto pages =
          PagesFrom(static_cast<int32_t>(s) * kPagesEach, kPagesEach);
      AppendShare(batch, 16,
                  {.tokens = step == 0 ? tokens.first(prompt)
                                       : tokens.subspan(prompt + step - 1, 1),
                   .first = step == 0 ? 0 : prompt + step - 1,
                   .pages = pages,
                   .logits = Logits::kLast});
    }
    if (step > 0) batch.decode_rows = batch.rows();
    book(batch);
  }
  return results;
}

TEST_P(ModelTest, SequencesTogetherAreTheSameBitsAsAlone) {
  const GgufWriter writer = WriteSmallModel({.format = QuantFormat::kQ4_1});
  std::vector<std::vector<int32_t>> all;
  for (const int32_t length : kLengths) {
    all.push_back(RandomTokens(length + kDecodeSteps, length));
  }
  Fixture shared(writer, GetParam());
  const std::vector<Rows> together = RunTogether(shared, all);
  for (size_t s = 0; s < all.size(); ++s) {
    Fixture own(writer, GetParam());
    EXPECT_EQ(together[s], RunTogether(own, {all[s]})[0]) << "sequence " << s;
  }
}

TEST_P(ModelTest, GeneratedAndPromptRowsShareAStep) {
  const GgufWriter writer = WriteSmallModel({});
  const auto generating = RandomTokens(20, 5);
  const auto prompt = RandomTokens(33, 6);
  const auto pages = PagesFrom(0, 4);
  const auto other_pages = PagesFrom(4, 4);
  Fixture alone(writer, GetParam());
  alone.Prompt(std::span(generating).first(19), pages);
  Batch decode;
  AppendShare(
      decode, 16,
      {.tokens = std::span(generating).last(1), .first = 19, .pages = pages});
  decode.decode_rows = 1;
  Rows expected = alone.Forward(decode);
  const Rows prompt_rows = alone.Prompt(prompt, other_pages);
  expected.insert(expected.end(), prompt_rows.begin(), prompt_rows.end());

  Fixture mixed(writer, GetParam());
  mixed.Prompt(std::span(generating).first(19), pages);
  AppendShare(decode, 16, {.tokens = prompt, .pages = other_pages});
  EXPECT_EQ(mixed.Forward(decode), expected);
}

TEST_P(ModelTest, GeneratedRowsAgreeWithPromptRows) {
  const GgufWriter writer = WriteSmallModel({});
  const auto tokens = RandomTokens(40, 7);
  const auto pages = PagesFrom(3, 3);
  Fixture wide(writer, GetParam());
  const Rows expected = wide.Prompt(tokens, pages);
  Fixture narrow(writer, GetParam());
  for (int32_t i = 0; i < 40; ++i) {
    Batch batch;
    AppendShare(batch, 16,
                {.tokens = std::span(tokens).subspan(i, 1),
                 .first = i,
                 .pages = pages});
    batch.decode_rows = 1;
    const Rows rows = narrow.Forward(batch);
    if (GetParam() == Device::kReference) {
      ASSERT_EQ(rows[0], expected[i]) << "position " << i;
    } else {
      ASSERT_LT(RelativeError(rows[0], expected[i]), tolerance());
    }
  }
}

TEST_P(ModelTest, PagesOfAnySizeInAnyOrderAreTheSameBits) {
  const GgufWriter writer = WriteSmallModel({});
  const auto tokens = RandomTokens(50, 8);
  Fixture plain(writer, GetParam(), 16);
  const Rows expected = plain.Prompt(tokens, PagesFrom(0, 4));
  for (const int32_t page_size : {1, 3, 16}) {
    Fixture scattered(writer, GetParam(), page_size);
    auto pages = PagesFrom(0, scattered.cache->pages());
    std::shuffle(pages.begin(), pages.end(), std::mt19937_64(page_size));
    EXPECT_EQ(scattered.Prompt(tokens, pages), expected)
        << "page size " << page_size;
  }
}

TEST_P(ModelTest, LogitsOfChosenRowsOnly) {
  const GgufWriter writer = WriteSmallModel({.tied_embeddings = false});
  const auto tokens = RandomTokens(30, 9);
  const auto pages = PagesFrom(0, 2);
  Fixture fixture(writer, GetParam());
  const Rows all = fixture.Prompt(tokens, pages);
  Batch batch;
  AppendShare(batch, 16,
              {.tokens = tokens, .pages = pages, .logits = Logits::kNone});
  EXPECT_TRUE(fixture.Forward(batch).empty());
  batch.logit_rows = {0, 7, 8, 29};
  EXPECT_EQ(fixture.Forward(batch), (Rows{all[0], all[7], all[8], all[29]}));
}

TEST_P(ModelTest, EmptyStep) {
  Fixture fixture(WriteSmallModel({}), GetParam());
  Batch batch;
  batch.Clear();
  EXPECT_TRUE(fixture.Forward(batch).empty());
}

void ExpectNearNaive(const GgufWriter& writer, Device device,
                     double tolerance) {
  Fixture fixture(writer, device);
  const auto tokens = RandomTokens(24, 10);
  const Rows rows = fixture.Prompt(tokens, PagesFrom(0, 2));
  const auto expected =
      test::NaiveLogits(*fixture.checkpoint, kRopeBase, tokens);
  for (size_t i = 0; i < tokens.size(); ++i) {
    ASSERT_LT(RelativeError(rows[i], expected[i]), tolerance)
        << "position " << i;
  }
}

TEST_P(ModelTest, LlamaAgreesWithNaiveDecoder) {
  for (const bool tied : {false, true}) {
    ExpectNearNaive(WriteSmallModel({.format = QuantFormat::kF32,
                                     .layers = 3,
                                     .heads = 8,
                                     .kv_heads = 2,
                                     .tied_embeddings = tied}),
                    GetParam(), tolerance());
  }
}

TEST_P(ModelTest, Qwen2WithBiasesAgreesWithNaiveDecoder) {
  for (const bool tied : {false, true}) {
    ExpectNearNaive(WriteSmallModel({.architecture = Architecture::kQwen2,
                                     .format = QuantFormat::kF32,
                                     .heads = 4,
                                     .kv_heads = 1,
                                     .tied_embeddings = tied}),
                    GetParam(), tolerance());
  }
}

TEST_P(ModelTest, LlamaWithBiasesAgreesWithNaiveDecoder) {
  GgufWriter writer = WriteSmallModel({.layers = 1});
  for (const auto& [name, size] : {std::pair("attn_q", 64),
                                   {"attn_k", 32},
                                   {"attn_v", 32},
                                   {"attn_output", 64},
                                   {"ffn_gate", 96},
                                   {"ffn_up", 96},
                                   {"ffn_down", 64}}) {
    writer.Tensor(
        {.name = "blk.0." + std::string(name) + ".bias",
         .dims = {static_cast<uint64_t>(size)},
         .bytes = test::RandomWeights(QuantFormat::kF32, 1, size, size),
         .offset_bytes = std::nullopt});
  }
  ExpectNearNaive(writer, GetParam(), tolerance());
}

// The random scales of the K formats make weights of unequal size, whose large
// ones dominate a row and pass the rounding of their few inputs on undiluted.
constexpr double kKFormats = 4;

TEST_P(ModelTest, EveryFormatAgreesWithNaiveDecoder) {
  for (const kernels::FormatInfo& format : kernels::kFormatTable) {
    SCOPED_TRACE(std::string(format.name));
    ExpectNearNaive(WriteSmallModel({.format = format.format,
                                     .hidden_size = 256,
                                     .feed_forward_size = 512,
                                     .tied_embeddings = false}),
                    GetParam(), kKFormats * tolerance());
  }
}

// As in a Q4_K_M file: the parts of a stacked matrix differ in format.
TEST_P(ModelTest, StackedPartsOfDifferentFormats) {
  GgufWriter writer = WriteSmallModel({.format = QuantFormat::kQ4_K,
                                       .layers = 1,
                                       .hidden_size = 256,
                                       .feed_forward_size = 256});
  writer.RemoveTensor("blk.0.attn_v.weight");
  writer.Tensor({.name = "blk.0.attn_v.weight",
                 .dims = {256, 128},
                 .type = TensorTypeOfFormat(QuantFormat::kQ6_K),
                 .bytes = test::RandomWeights(QuantFormat::kQ6_K, 128, 256, 3),
                 .offset_bytes = std::nullopt});
  ExpectNearNaive(writer, GetParam(), kKFormats * tolerance());
}

TEST_P(ModelTest, PlanLinesNameEachShapeOnce) {
  Fixture fixture(WriteSmallModel({.format = QuantFormat::kQ8_0, .layers = 3}),
                  GetParam());
  const std::vector<std::string> lines = fixture.model->PlanLines();
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("attn_q+attn_k+attn_v [128, 64]"),
                              HasSubstr("q8_0+q8_0+q8_0")));
  EXPECT_THAT(lines[4], HasSubstr("token_embd (tied) [259, 64]"));
  EXPECT_GT(fixture.model->packed_bytes(), 0);
}

absl::Status LoadStatus(const GgufWriter& writer) {
  const test::TemporaryFile file(writer.Build());
  const auto checkpoint = Checkpoint::Open(file.path());
  if (!checkpoint.ok()) return checkpoint.status();
  const auto backend = *kernels::MakeBackend(Device::kReference, 1);
  return Model::Load(**checkpoint, *backend, {}).status();
}

TEST(ModelLoadTest, NamesTheMissingTensor) {
  for (const char* name :
       {"blk.1.attn_k.weight", "blk.0.ffn_norm.weight", "output_norm.weight",
        "blk.1.ffn_down.weight", "blk.0.attn_output.weight"}) {
    GgufWriter writer = WriteSmallModel({});
    writer.RemoveTensor(name);
    const absl::Status status = LoadStatus(writer);
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(name), HasSubstr("missing")));
  }
}

TEST(ModelLoadTest, Qwen2NeedsItsBiases) {
  GgufWriter writer = WriteSmallModel({.architecture = Architecture::kQwen2});
  writer.RemoveTensor("blk.1.attn_v.bias");
  const absl::Status status = LoadStatus(writer);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("blk.1.attn_v.bias"), HasSubstr("missing")));
}

TEST(ModelLoadTest, NamesTheWrongShape) {
  GgufWriter writer = WriteSmallModel({.format = QuantFormat::kF32});
  writer.RemoveTensor("blk.1.ffn_up.weight");
  writer.Zeros("blk.1.ffn_up.weight", {64, 95});
  const absl::Status status = LoadStatus(writer);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("blk.1.ffn_up.weight"), HasSubstr("[95, 64]"),
                    HasSubstr("[96, 64]")));
}

TEST(ModelLoadTest, NamesTheTensorNobodyReads) {
  GgufWriter writer = WriteSmallModel({});
  writer.Zeros("blk.0.attn_q_norm.weight", {16});
  const absl::Status status = LoadStatus(writer);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("blk.0.attn_q_norm.weight"),
                    HasSubstr("not part of the llama architecture")));
}

TEST(ModelLoadTest, RefusesNoRows) {
  const test::TemporaryFile file(WriteSmallModel({}).Build());
  const auto checkpoint = *Checkpoint::Open(file.path());
  const auto backend = *kernels::MakeBackend(Device::kReference, 1);
  for (const ModelOptions& options :
       {ModelOptions{.max_batch_rows = 0}, ModelOptions{.max_logit_rows = 0}}) {
    EXPECT_EQ(Model::Load(*checkpoint, *backend, options).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace nibble::model
