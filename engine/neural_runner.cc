#include "engine/neural_runner.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checked_math.h"
#include "base/status.h"
#include "engine/memory.h"
#include "model/model_config.h"

namespace nibble::engine {
namespace {

// Prompt logprobs come in chunks of so many rows; each row of logits takes
// vocab floats.
constexpr int32_t kLogitRows = 128;
// The default cache leaves room for other models and for the page cache.
constexpr int64_t kCacheShare = 4;
constexpr int64_t kMib = int64_t{1} << 20;

absl::Status CheckAtLeast(const char* name, int32_t value, int32_t least) {
  if (value >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " = ", value, ", must be at least ", least));
}

absl::Status CheckOptions(const LoadOptions& options) {
  NIBBLE_RETURN_IF_ERROR(CheckAtLeast("kv_pages", options.kv_pages, 0));
  NIBBLE_RETURN_IF_ERROR(CheckAtLeast("page_size", options.page_size, 1));
  NIBBLE_RETURN_IF_ERROR(
      CheckAtLeast("max_batch_rows", options.max_batch_rows, 1));
  NIBBLE_RETURN_IF_ERROR(
      CheckAtLeast("max_sequences", options.max_sequences, 1));
  return CheckAtLeast("max_context", options.max_context, 0);
}

std::string Mib(int64_t bytes) {
  return absl::StrCat(DivideUp(bytes, kMib), " MiB");
}

}  // namespace

absl::StatusOr<int32_t> ChooseKvPages(const KvBudget& budget,
                                      const LoadOptions& options) {
  const int64_t context_pages =
      DivideUp(budget.context_length, options.page_size);
  // A divisor, not a product: page_bytes may be large.
  const int64_t fitting = budget.available_bytes / budget.page_bytes;
  if (options.kv_pages > 0) {
    if (options.kv_pages <= fitting) return options.kv_pages;
    return absl::ResourceExhaustedError(
        absl::StrCat("kv_pages = ", options.kv_pages, " of ", budget.page_bytes,
                     " bytes each do not fit the ", Mib(budget.available_bytes),
                     " of available memory, which holds ", fitting, " pages"));
  }
  if (context_pages > fitting) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "one context of ", budget.context_length, " tokens takes ",
        context_pages, " KV pages of ", budget.page_bytes, " bytes, but the ",
        Mib(budget.available_bytes), " of available memory hold ", fitting,
        "; ask for a shorter context (--max-context)"));
  }
  const int64_t wanted = context_pages * options.max_sequences;
  const int64_t pages = std::clamp(fitting / kCacheShare, context_pages,
                                   std::max(wanted, context_pages));
  return static_cast<int32_t>(
      std::min<int64_t>(pages, std::numeric_limits<int32_t>::max()));
}

absl::StatusOr<std::unique_ptr<NeuralRunner>> NeuralRunner::Load(
    const std::string& path, const LoadOptions& options) {
  NIBBLE_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<NeuralRunner> runner(new NeuralRunner());
  NIBBLE_RETURN_IF_ERROR(runner->LoadModel(path, options));
  NIBBLE_RETURN_IF_ERROR(runner->MakeCache(options));
  runner->FillInfo(options);
  return runner;
}

absl::Status NeuralRunner::LoadModel(const std::string& path,
                                     const LoadOptions& options) {
  NIBBLE_ASSIGN_OR_RETURN(
      backend_, kernels::MakeBackend(options.device, options.threads));
  NIBBLE_ASSIGN_OR_RETURN(checkpoint_, model::Checkpoint::Open(path));
  NIBBLE_ASSIGN_OR_RETURN(tokenizer_,
                          model::Tokenizer::Create(checkpoint_->tokenizer()));
  const int32_t vocab_size = checkpoint_->config().vocab_size;
  if (tokenizer_->vocab_size() != vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": vocabulary of ", tokenizer_->vocab_size(),
        " tokens, but token_embd.weight has ", vocab_size, " rows"));
  }
  NIBBLE_ASSIGN_OR_RETURN(
      model_, model::Model::Load(*checkpoint_, *backend_,
                                 {.max_batch_rows = options.max_batch_rows,
                                  .max_logit_rows = std::max(
                                      kLogitRows, options.max_sequences)}));
  return absl::OkStatus();
}

absl::Status NeuralRunner::MakeCache(const LoadOptions& options) {
  const model::ModelConfig& config = checkpoint_->config();
  info_.context_length =
      options.max_context > 0
          ? std::min(options.max_context, config.context_length)
          : config.context_length;
  NIBBLE_ASSIGN_OR_RETURN(const int64_t available, AvailableMemoryBytes());
  NIBBLE_ASSIGN_OR_RETURN(
      const int32_t pages,
      ChooseKvPages({.page_bytes = model::KvCache::PageBytes(
                         config, backend_->kv_dtype(), options.page_size),
                     .available_bytes = available,
                     .context_length = info_.context_length},
                    options));
  NIBBLE_ASSIGN_OR_RETURN(
      cache_,
      model::KvCache::Create(config, *backend_, pages, options.page_size));
  return absl::OkStatus();
}

void NeuralRunner::FillInfo(const LoadOptions& options) {
  const model::ModelConfig& config = checkpoint_->config();
  info_.name = config.name;
  info_.architecture = std::string(model::Name(config.architecture));
  info_.file_type = config.file_type;
  info_.backend = backend_->name();
  info_.device = backend_->description();
  info_.vocab_size = config.vocab_size;
  info_.pages = cache_->pages();
  info_.page_size = cache_->page_size();
  info_.max_batch_rows = options.max_batch_rows;
  info_.max_logit_rows = model_->options().max_logit_rows;
  info_.parameters = config.parameters;
  info_.weight_bytes = config.weight_bytes;
  info_.kv_bytes = cache_->bytes();
  info_.plan = model_->PlanLines();
}

void NeuralRunner::Step(const model::Batch& batch,
                        std::span<const kernels::SampleRow> rows,
                        std::span<kernels::SampleResult> results) {
  NIBBLE_CHECK_EQ(rows.size(), batch.logit_rows.size());
  const kernels::TensorView logits = model_->Forward(batch, *cache_);
  if (!rows.empty()) backend_->Sample(logits, rows, results);
  quantize_seconds_ = backend_->TakeTimings().quantize_seconds;
}

}  // namespace nibble::engine
