// A step's plan as the arrays a model runs on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/live_request.h"
#include "kernels/sampling.h"
#include "model/batch.h"
#include "scheduler/scheduler.h"

namespace nibble::engine {

// The outputs whose sequences the scheduler holds, by sequence.
using OutputMap = absl::flat_hash_map<scheduler::SequenceId,
                                      std::pair<LiveRequest*, Output*>>;

// What the logits of one row are for.
struct LogitUse {
  LiveRequest* request = nullptr;
  Output* output = nullptr;
  // The prompt token whose logprob they give, or -1: they choose a token.
  int32_t prompt_position = -1;
};

// One step's batch and sampling rows, refilled each step. Owned by the engine
// loop, engine thread only; what it lends out is valid until the next Build.
class BatchBuilder final {
 public:
  explicit BatchBuilder(int32_t page_size) : page_size_(page_size) {}

  // `plan` must not be empty and its sequences must be in `outputs`.
  void Build(const scheduler::StepPlan& plan, const OutputMap& outputs);

  const model::Batch& batch() const { return batch_; }
  // [batch().logit_rows.size()] each
  std::span<const kernels::SampleRow> rows() const { return rows_; }
  std::span<const LogitUse> uses() const { return uses_; }
  std::span<kernels::SampleResult> results() { return results_; }

 private:
  void AddRows(const scheduler::StepItem& item);
  void AddPages(const scheduler::StepItem& item);
  void AddLogits(const scheduler::StepItem& item, LiveRequest& request,
                 Output& output);
  void AddPromptLogprob(LiveRequest& request, Output& output, int32_t position);
  void AddSample(const scheduler::Sequence& sequence, LiveRequest& request,
                 Output& output);

  int32_t page_size_;
  model::Batch batch_;
  std::vector<kernels::SampleRow> rows_;
  std::vector<LogitUse> uses_;
  std::vector<kernels::SampleResult> results_;
};

}  // namespace nibble::engine
