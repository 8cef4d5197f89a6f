#include "scheduler/scheduler.h"

#include <algorithm>
#include <limits>
#include <ranges>
#include <utility>

#include "base/check.h"
#include "scheduler/scheduler_impl.h"

namespace nibble::scheduler {

void WaitingQueue::Insert(LiveSequence* sequence) {
  NIBBLE_CHECK(set_.insert(sequence).second);
  tokens_ += sequence->num_tokens();
}

void WaitingQueue::Erase(LiveSequence* sequence) {
  NIBBLE_CHECK_EQ(set_.erase(sequence), size_t{1});
  tokens_ -= sequence->num_tokens();
}

Scheduler::Impl::Impl(const SchedulerOptions& scheduler_options,
                      PagePool::HashFunction hash)
    : options(scheduler_options), pool(options.pages, options.page_size, hash) {
  NIBBLE_CHECK_GE(options.max_sequences, 1);
  // Every running sequence can have its row, and that row its logits.
  NIBBLE_CHECK_LE(options.max_sequences, options.max_batch_rows);
  NIBBLE_CHECK_LE(options.max_sequences, options.max_logit_rows);
}

void Scheduler::Impl::Add(SequenceParams params) {
  NIBBLE_CHECK(!params.prompt.empty());
  NIBBLE_CHECK_GE(params.max_new_tokens, 0);
  auto sequence = std::make_unique<LiveSequence>();
  sequence->id = params.id;
  sequence->priority = params.priority;
  sequence->arrival = next_arrival++;
  sequence->all_logits = params.all_logits;
  sequence->cache_salt = params.cache_salt;
  sequence->num_prompt = static_cast<int32_t>(params.prompt.size());
  sequence->max_tokens = sequence->num_prompt + params.max_new_tokens;
  sequence->tokens = std::move(params.prompt);
  LiveSequence* const added = sequence.get();
  NIBBLE_CHECK(live.try_emplace(params.id, std::move(sequence)).second);
  waiting.Insert(added);
}

bool Scheduler::Impl::Cancel(SequenceId id) {
  const auto found = live.find(id);
  if (found == live.end()) return false;
  LiveSequence& sequence = *found->second;
  if (sequence.state == LiveSequence::State::kWaiting) {
    waiting.Erase(&sequence);
  } else {
    running.erase(&sequence);
    DiscardPages(sequence);
  }
  if (sequence.in_plan) {
    sequence.state = LiveSequence::State::kCancelled;
    cancelled.push_back(std::move(found->second));
  }
  live.erase(found);
  return true;
}

// Gives the pages back for good. Generated pages under stable numerics can
// help only the same sequence recomputed (or a twin of it), so they do not
// push prompts out of the cache.
void Scheduler::Impl::DiscardPages(const LiveSequence& sequence) {
  const int32_t prompt_pages = options.origin_matters
                                   ? sequence.num_prompt / options.page_size
                                   : std::numeric_limits<int32_t>::max();
  for (auto i = static_cast<int32_t>(sequence.pages.size()) - 1; i >= 0; --i) {
    if (i < prompt_pages) {
      pool.Release(sequence.pages[i]);
    } else {
      pool.Discard(sequence.pages[i]);
    }
  }
}

std::vector<SequenceId> Scheduler::Impl::Commit(
    const StepPlan& plan, std::span<const SampledToken> sampled) {
  NIBBLE_CHECK_EQ(plan.items.size(), pending.size());
  absl::flat_hash_map<SequenceId, const SampledToken*> by_id;
  by_id.reserve(sampled.size());
  for (const SampledToken& token : sampled) {
    NIBBLE_CHECK(by_id.try_emplace(token.id, &token).second);
  }
  std::vector<SequenceId> freed;
  size_t used_samples = 0;
  for (size_t i = 0; i < pending.size(); ++i) {
    const StepItem& item = plan.items[i];
    LiveSequence& sequence = *pending[i];
    NIBBLE_CHECK(item.sequence == &sequence);
    const auto token = by_id.find(sequence.id);
    const bool has_token = item.samples && token != by_id.end();
    used_samples += has_token ? 1 : 0;
    if (sequence.state == LiveSequence::State::kCancelled) continue;
    NIBBLE_CHECK_EQ(has_token, item.samples);
    sequence.in_plan = false;
    Book(item, sequence);
    if (has_token) sequence.tokens.push_back(token->second->token);
    const bool complete = sequence.num_tokens() == sequence.max_tokens &&
                          sequence.num_computed == sequence.compute_limit();
    if (complete || (has_token && token->second->finished)) {
      freed.push_back(sequence.id);
      Finish(sequence);
    }
  }
  NIBBLE_CHECK_EQ(used_samples, sampled.size());
  pending.clear();
  cancelled.clear();
  return freed;
}

void Scheduler::Impl::Book(const StepItem& item, LiveSequence& sequence) {
  const int32_t first = sequence.num_computed;
  NIBBLE_CHECK_EQ(item.first, first);
  const int32_t end = first + item.count;
  recomputed_tokens +=
      std::max(0, std::min(end, sequence.max_computed) - first);
  sequence.num_computed = end;
  sequence.max_computed = std::max(sequence.max_computed, end);
  if (options.prefix_cache) {
    PublishPages(sequence, first / options.page_size, end / options.page_size);
  }
}

void Scheduler::Impl::PublishPages(LiveSequence& sequence, int32_t first,
                                   int32_t end) {
  for (int32_t i = first; i < end; ++i) {
    sequence.pages[i] = pool.Publish(sequence.pages[i], HashOfPage(sequence, i),
                                     KeyOfPage(sequence, i));
  }
}

// The page before must be in the page table already.
PageKey Scheduler::Impl::KeyOfPage(const LiveSequence& sequence,
                                   int32_t index) const {
  const int32_t size = options.page_size;
  const int32_t first = index * size;
  return {
      .previous_page = index == 0 ? -1 : sequence.pages[index - 1],
      .tokens = std::span(sequence.tokens).subspan(first, size),
      .prompt_tokens = options.origin_matters
                           ? std::clamp(sequence.num_prompt - first, 0, size)
                           : size,
      .salt = sequence.cache_salt};
}

uint64_t Scheduler::Impl::HashOfPage(LiveSequence& sequence, int32_t index) {
  std::vector<uint64_t>& hashes = sequence.page_hashes;
  while (static_cast<int32_t>(hashes.size()) <= index) {
    const auto next = static_cast<int32_t>(hashes.size());
    const uint64_t previous = hashes.empty()
                                  ? PagePool::ChainStart(sequence.cache_salt)
                                  : hashes.back();
    const int32_t size = options.page_size;
    const int32_t first = next * size;
    const int32_t prompt_tokens =
        options.origin_matters
            ? std::clamp(sequence.num_prompt - first, 0, size)
            : size;
    hashes.push_back(pool.ChainHash(
        previous, std::span(sequence.tokens).subspan(first, size),
        prompt_tokens));
  }
  return hashes[index];
}

void Scheduler::Impl::Finish(LiveSequence& sequence) {
  DiscardPages(sequence);
  running.erase(&sequence);
  live.erase(sequence.id);
}

SchedulerStats Scheduler::Impl::Stats() const {
  SchedulerStats stats;
  stats.waiting = waiting.size();
  stats.running = static_cast<int32_t>(running.size());
  stats.waiting_tokens = static_cast<int32_t>(
      std::min<int64_t>(waiting.tokens(), std::numeric_limits<int32_t>::max()));
  stats.pages_total = pool.total();
  stats.pages_used = pool.used();
  stats.pages_cached = pool.cached();
  stats.preemptions = preemptions;
  stats.prefix_query_tokens = prefix_query_tokens;
  stats.prefix_hit_tokens = prefix_hit_tokens;
  stats.recomputed_tokens = recomputed_tokens;
  return stats;
}

Scheduler::Scheduler(const SchedulerOptions& options)
    : Scheduler(options, &PagePool::DefaultHash) {}

Scheduler::Scheduler(const SchedulerOptions& options,
                     PagePool::HashFunction hash)
    : impl_(std::make_unique<Impl>(options, hash)) {}

Scheduler::~Scheduler() = default;

bool Scheduler::CanEverFit(int64_t tokens) const {
  const SchedulerOptions& options = impl_->options;
  return tokens <= std::numeric_limits<int32_t>::max() &&
         tokens <= int64_t{options.pages} * options.page_size;
}

void Scheduler::Add(SequenceParams params) {
  const auto prompt_tokens = static_cast<int64_t>(params.prompt.size());
  NIBBLE_CHECK(CanEverFit(prompt_tokens + params.max_new_tokens));
  impl_->Add(std::move(params));
}

bool Scheduler::Cancel(SequenceId id) { return impl_->Cancel(id); }

StepPlan Scheduler::Schedule() { return impl_->Schedule(); }

std::vector<SequenceId> Scheduler::Commit(
    const StepPlan& plan, std::span<const SampledToken> sampled) {
  return impl_->Commit(plan, sampled);
}

const Sequence* Scheduler::Find(SequenceId id) const {
  const auto found = impl_->live.find(id);
  return found == impl_->live.end() ? nullptr : found->second.get();
}

bool Scheduler::idle() const { return impl_->live.empty(); }
SchedulerStats Scheduler::stats() const { return impl_->Stats(); }
const SchedulerOptions& Scheduler::options() const { return impl_->options; }
const PagePool& Scheduler::pool() const { return impl_->pool; }

}  // namespace nibble::scheduler
