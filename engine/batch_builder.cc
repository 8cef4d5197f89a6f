#include "engine/batch_builder.h"

#include "base/check.h"
#include "base/checked_math.h"

namespace nibble::engine {

void BatchBuilder::Build(const scheduler::StepPlan& plan,
                         const OutputMap& outputs) {
  batch_.Clear();
  rows_.clear();
  uses_.clear();
  batch_.decode_rows = plan.generated_rows;
  for (const scheduler::StepItem& item : plan.items) {
    const auto found = outputs.find(item.sequence->id);
    NIBBLE_CHECK(found != outputs.end());
    const auto [request, output] = found->second;
    AddLogits(item, *request, *output);
    AddRows(item);
    AddPages(item);
  }
  results_.assign(rows_.size(), {});
}

void BatchBuilder::AddRows(const scheduler::StepItem& item) {
  const scheduler::Sequence& sequence = *item.sequence;
  for (int32_t i = 0; i < item.count; ++i) {
    const int32_t position = item.first + i;
    const int64_t page =
        sequence.pages[static_cast<size_t>(position / page_size_)];
    batch_.tokens.push_back(sequence.tokens[static_cast<size_t>(position)]);
    batch_.positions.push_back(position);
    batch_.slots.push_back(page * page_size_ + position % page_size_);
  }
  batch_.row_begin.push_back(batch_.rows());
}

void BatchBuilder::AddPages(const scheduler::StepItem& item) {
  const std::vector<int32_t>& pages = item.sequence->pages;
  const int32_t count = DivideUp(item.first + item.count, page_size_);
  NIBBLE_CHECK_LE(static_cast<size_t>(count), pages.size());
  batch_.page_ids.insert(batch_.page_ids.end(), pages.begin(),
                         pages.begin() + count);
  batch_.page_begin.push_back(static_cast<int32_t>(batch_.page_ids.size()));
}

// Called before the item's rows are added: they begin at batch_.rows().
void BatchBuilder::AddLogits(const scheduler::StepItem& item,
                             LiveRequest& request, Output& output) {
  const int32_t begin = batch_.rows();
  if (item.all_logits) {
    // Row p gives the logprob of prompt token p + 1; nothing follows the last.
    for (int32_t i = 0; i < item.count; ++i) {
      const int32_t next = item.first + i + 1;
      if (next >= request.prompt_tokens()) break;
      batch_.logit_rows.push_back(begin + i);
      AddPromptLogprob(request, output, next);
    }
  }
  if (item.samples) {
    batch_.logit_rows.push_back(begin + item.count - 1);
    AddSample(*item.sequence, request, output);
  }
}

void BatchBuilder::AddPromptLogprob(LiveRequest& request, Output& output,
                                    int32_t position) {
  kernels::SampleRow row;
  row.params = &output.sampling();
  row.prompt_tokens = request.prompt;
  row.num_logprobs = request.request.output.prompt_logprobs;
  row.forced_token = request.prompt[static_cast<size_t>(position)];
  rows_.push_back(row);
  uses_.push_back({&request, &output, position});
}

void BatchBuilder::AddSample(const scheduler::Sequence& sequence,
                             LiveRequest& request, Output& output) {
  const std::span<const int32_t> tokens = sequence.tokens;
  const auto prompt_size = static_cast<size_t>(sequence.num_prompt);
  kernels::SampleRow row;
  row.params = &output.sampling();
  row.prompt_tokens = tokens.first(prompt_size);
  row.generated_tokens = tokens.subspan(prompt_size);
  row.position = row.generated_tokens.size();
  row.banned = output.Banned();
  row.num_logprobs = request.request.output.logprobs;
  rows_.push_back(row);
  uses_.push_back({&request, &output, -1});
}

}  // namespace nibble::engine
