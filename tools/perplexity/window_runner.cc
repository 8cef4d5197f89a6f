#include "tools/perplexity/window_runner.h"

#include <algorithm>

#include "base/check.h"
#include "base/checked_math.h"
#include "base/status.h"

namespace nibble::tools {
namespace {

constexpr int32_t kPageTokens = 16;
// Rows of a step: enough for the wide kernels. Rows with logits, which take
// vocab floats each, come in smaller steps.
constexpr int32_t kMaxRows = 512;
constexpr int32_t kMaxLogitRows = 128;

}  // namespace

absl::StatusOr<std::unique_ptr<WindowRunner>> WindowRunner::Create(
    const model::Checkpoint& checkpoint, kernels::Backend& backend,
    int32_t context) {
  std::unique_ptr<WindowRunner> runner(new WindowRunner(backend));
  NIBBLE_ASSIGN_OR_RETURN(
      runner->model_,
      model::Model::Load(checkpoint, backend,
                         {.max_batch_rows = std::min(context, kMaxRows),
                          .max_logit_rows = std::min(context, kMaxLogitRows)}));
  NIBBLE_ASSIGN_OR_RETURN(
      runner->cache_,
      model::KvCache::Create(checkpoint.config(), backend,
                             DivideUp(context, kPageTokens), kPageTokens));
  runner->logits_.resize(checkpoint.config().vocab_size);
  return runner;
}

void WindowRunner::FillBatch(std::span<const int32_t> tokens, int32_t begin,
                             int32_t end, int32_t first) {
  batch_.Clear();
  for (int32_t position = begin; position < end; ++position) {
    batch_.tokens.push_back(tokens[position]);
    batch_.positions.push_back(position);
    // Page p of the window is page p of the cache.
    batch_.slots.push_back(position);
    if (position >= first) batch_.logit_rows.push_back(position - begin);
  }
  batch_.row_begin.push_back(batch_.rows());
  for (int32_t page = 0; page < DivideUp(end, kPageTokens); ++page) {
    batch_.page_ids.push_back(page);
  }
  batch_.page_begin.push_back(static_cast<int32_t>(batch_.page_ids.size()));
}

void WindowRunner::Run(std::span<const int32_t> tokens, int32_t first,
                       Visit visit) {
  const auto end = static_cast<int32_t>(tokens.size()) - 1;
  NIBBLE_CHECK(first >= 0 && first < end);
  for (int32_t begin = 0; begin < end;) {
    const int32_t limit = begin < first ? std::min(first, begin + kMaxRows)
                                        : std::min(end, begin + kMaxLogitRows);
    FillBatch(tokens, begin, limit, first);
    const kernels::TensorView logits = model_->Forward(batch_, *cache_);
    for (int64_t row = 0; row < logits.rows; ++row) {
      backend_.CopyToHost(logits_.data(), logits.Rows(row, 1).data,
                          static_cast<int64_t>(logits_.size() * sizeof(float)));
      visit(begin + batch_.logit_rows[row], logits_);
    }
    begin = limit;
  }
}

}  // namespace nibble::tools
