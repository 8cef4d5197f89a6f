// A model that computes: weights on a backend, with its KV pages.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "engine/load.h"
#include "engine/model_runner.h"
#include "kernels/backend.h"
#include "model/checkpoint.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "model/tokenizer.h"

namespace nibble::engine {

// Owns the checkpoint, the backend and what was made of them. Owned by the
// engine; Step is called by the engine thread only, the rest is immutable.
class NeuralRunner final : public ModelRunner {
 public:
  // Loads the GGUF file `path`. Errors name the option or the tensor.
  static absl::StatusOr<std::unique_ptr<NeuralRunner>> Load(
      const std::string& path, const LoadOptions& options);

  const RunnerInfo& info() const override { return info_; }
  const model::Tokenizer& tokenizer() const override { return *tokenizer_; }
  void Step(const model::Batch& batch, std::span<const kernels::SampleRow> rows,
            std::span<kernels::SampleResult> results) override;
  double last_quantize_seconds() const override { return quantize_seconds_; }

 private:
  NeuralRunner() = default;
  absl::Status LoadModel(const std::string& path, const LoadOptions& options);
  absl::Status MakeCache(const LoadOptions& options);
  void FillInfo(const LoadOptions& options);

  // In this order: each is borrowed by those below it.
  std::unique_ptr<model::Checkpoint> checkpoint_;
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<model::Tokenizer> tokenizer_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<model::KvCache> cache_;
  RunnerInfo info_;
  double quantize_seconds_ = 0;  // of the last Step
};

// How many KV pages to make, and why not.
struct KvBudget {
  int64_t page_bytes = 0;
  int64_t available_bytes = 0;
  int32_t context_length = 0;  // tokens
};

// options.kv_pages where set, if they fit the available memory; else enough
// for options.max_sequences contexts within a quarter of it, but at least one
// context. RESOURCE_EXHAUSTED gives the numbers.
absl::StatusOr<int32_t> ChooseKvPages(const KvBudget& budget,
                                      const LoadOptions& options);

}  // namespace nibble::engine
