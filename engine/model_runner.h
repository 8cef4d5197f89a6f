// What an engine needs of a model: one step, tokens out.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/sampling.h"
#include "model/batch.h"
#include "model/tokenizer.h"

namespace nibble::engine {

// What is known about a runner before it runs; limits are exact.
struct RunnerInfo {
  std::string name;          // general.name of the file, or the script's
  std::string architecture;  // "llama", "qwen2", "scripted"
  std::string file_type;     // prevailing weight format
  std::string backend;       // "cpu", "reference", "scripted", ...
  std::string device;        // one line
  int32_t vocab_size = 0;
  int32_t context_length = 0;  // tokens
  int32_t pages = 0;
  int32_t page_size = 0;
  int32_t max_batch_rows = 0;
  int32_t max_logit_rows = 0;
  uint64_t parameters = 0;
  uint64_t weight_bytes = 0;
  int64_t kv_bytes = 0;
  std::vector<std::string> plan;  // one line a linear shape
};

// A model with its KV pages: a neural one on a backend, or a scripted one.
// Owned by the engine; Step is called by the engine thread only.
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;
  virtual const RunnerInfo& info() const = 0;
  virtual const model::Tokenizer& tokenizer() const = 0;
  // Runs the rows of `batch`; `rows[i]` says what to do with the logits of
  // row batch.logit_rows[i]. Has no error path.
  virtual void Step(const model::Batch& batch,
                    std::span<const kernels::SampleRow> rows,
                    std::span<kernels::SampleResult> results) = 0;
  // Seconds spent quantizing activations in the last Step, where separate.
  virtual double last_quantize_seconds() const { return 0; }
};

}  // namespace nibble::engine
