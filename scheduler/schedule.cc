// Scheduler::Schedule: who starts, who runs how many rows, who must go.
//
// First waiting sequences start (Admit), then the running ones get rows and
// pages in rank order (GiveRows). A victim is always the lowest-ranking
// running sequence, so a sequence that has its rows in the plan is never
// preempted by one that comes later: it ranks higher.

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "scheduler/scheduler_impl.h"

namespace nibble::scheduler {

struct Scheduler::Impl::Load {
  std::vector<LiveSequence*> ranked;  // running when admission began
  size_t next = 0;         // of `ranked`: the first not known to outrank
  int64_t rows_ahead = 0;  // prompt rows wanted by those that outrank the head
  int32_t decodes = 0;
  int64_t reserved = 0;  // pages, over all running
};

struct Scheduler::Impl::Budget {
  int32_t rows = 0;
  int32_t logit_rows = 0;
};

namespace {

StepItem MakeItem(const LiveSequence& sequence, int32_t rows) {
  StepItem item;
  item.sequence = &sequence;
  item.first = sequence.num_computed;
  item.count = rows;
  item.generated = !sequence.in_prompt();
  item.samples = sequence.samples_at(item.first + rows);
  item.all_logits = sequence.wants_all_logits();
  return item;
}

int32_t LogitRows(const StepItem& item) {
  if (item.all_logits) return item.count;
  return item.samples ? 1 : 0;
}

}  // namespace

int32_t Scheduler::Impl::PagesFor(int64_t tokens) const {
  return static_cast<int32_t>((tokens + options.page_size - 1) /
                              options.page_size);
}

// Pages that a sequence has not got yet and must be able to take before
// another sequence may start: those of its known tokens and one more, as far
// as it can ever use them.
int32_t Scheduler::Impl::PagesReserved(const LiveSequence& sequence) const {
  const int32_t target = std::min(PagesFor(sequence.num_tokens()) + 1,
                                  PagesFor(sequence.compute_limit()));
  return std::max(0, target - static_cast<int32_t>(sequence.pages.size()));
}

// Rows of the sequence's next item if the step were its own. An item does not
// cross the end of the prompt, nor mix rows whose logits were already given
// out with rows whose logits are wanted.
int32_t Scheduler::Impl::RowsWanted(const LiveSequence& sequence) const {
  if (!sequence.in_prompt()) {
    return sequence.num_tokens() - sequence.num_computed;
  }
  int32_t end = sequence.num_prompt;
  if (sequence.all_logits && sequence.num_computed < sequence.max_computed) {
    end = std::min(end, sequence.max_computed);
  }
  const int32_t rows = end - sequence.num_computed;
  return sequence.wants_all_logits() ? std::min(rows, options.max_logit_rows)
                                     : rows;
}

StepPlan Scheduler::Impl::Schedule() {
  NIBBLE_CHECK(pending.empty());
  ++schedules;
  StepPlan plan;
  Admit(plan);
  GiveRows(plan);
  // The best ranked running sequence always gets a row: if it does not
  // generate, fewer than max_sequences do, which leaves it a row and logits.
  NIBBLE_CHECK(!plan.empty() || live.empty());
  return plan;
}

Scheduler::Impl::Load Scheduler::Impl::MeasureLoad() const {
  Load load;
  load.ranked.assign(running.begin(), running.end());
  for (const LiveSequence* sequence : load.ranked) {
    load.decodes += sequence->decodes() ? 1 : 0;
    load.reserved += PagesReserved(*sequence);
  }
  return load;
}

// Starts waiting sequences strictly in rank order: nothing overtakes the head
// of the queue, so a large sequence is not starved by small ones.
void Scheduler::Impl::Admit(StepPlan& plan) {
  if (waiting.empty()) return;
  Load load = MeasureLoad();
  while (!waiting.empty()) {
    LiveSequence& head = *waiting.first();
    // Room that was made by preempting it is not for itself.
    if (head.preempted_in == schedules) return;
    if (!TryStart(head, load, plan)) return;
  }
}

// Cheap reasons why the head cannot start, before its prefix is looked up.
bool Scheduler::Impl::MayStart(const LiveSequence& head, Load& load) const {
  while (load.next < load.ranked.size() &&
         ByRank()(load.ranked[load.next], &head)) {
    const LiveSequence& ahead = *load.ranked[load.next++];
    if (!ahead.decodes()) load.rows_ahead += RowsWanted(ahead);
  }
  if (running.empty()) return true;
  const LiveSequence& lowest = **running.rbegin();
  const bool may_preempt = lowest.priority < head.priority;
  const bool full =
      static_cast<int32_t>(running.size()) == options.max_sequences;
  if (full && !may_preempt) return false;
  if (load.reserved >= pool.available() && !may_preempt) return false;
  const int32_t decodes = load.decodes - (full && lowest.decodes() ? 1 : 0);
  return load.rows_ahead + decodes < options.max_batch_rows;
}

bool Scheduler::Impl::TryStart(LiveSequence& head, Load& load, StepPlan& plan) {
  if (!MayStart(head, load)) return false;
  TakeCachedPrefix(head);
  const auto victims = FindVictims(head, load);
  if (!victims.has_value()) {
    DropPages(head);
    return false;
  }
  for (LiveSequence* victim : *victims) {
    load.decodes -= victim->decodes() ? 1 : 0;
    load.reserved -= PagesReserved(*victim);
    Preempt(*victim, plan);
  }
  Start(head);
  load.reserved += PagesReserved(head);
  if (head.decodes()) {
    ++load.decodes;
  } else {
    load.rows_ahead += RowsWanted(head);
  }
  return true;
}

// The sequences of strictly lower priority to preempt, lowest rank first, so
// that the head has a slot and its pages and the others keep their reserve:
// none if there is room already, nothing if it cannot be made.
std::optional<std::vector<LiveSequence*>> Scheduler::Impl::FindVictims(
    const LiveSequence& head, const Load& load) const {
  std::vector<LiveSequence*> victims;
  int64_t missing_pages =
      load.reserved + PagesReserved(head) - pool.available();
  int64_t missing_slots =
      static_cast<int64_t>(running.size()) + 1 - options.max_sequences;
  for (auto it = running.rbegin(); missing_pages > 0 || missing_slots > 0;
       ++it) {
    if (it == running.rend() || (*it)->priority >= head.priority) {
      return std::nullopt;
    }
    missing_pages -= PagesReserved(**it);
    for (const int32_t page : (*it)->pages) {
      // A shared page stays with its other owner.
      if (pool.count(page) == 1) --missing_pages;
    }
    --missing_slots;
    victims.push_back(*it);
  }
  return victims;
}

// Takes the longest run of pages that hold a prefix of the sequence. Its last
// token is always computed, or there would be no logits to go on from.
void Scheduler::Impl::TakeCachedPrefix(LiveSequence& sequence) {
  NIBBLE_CHECK(sequence.pages.empty());
  if (!options.prefix_cache || sequence.all_logits) return;
  const int32_t limit = (sequence.num_tokens() - 1) / options.page_size;
  for (int32_t i = 0; i < limit; ++i) {
    const std::optional<int32_t> page =
        pool.Find(HashOfPage(sequence, i), KeyOfPage(sequence, i));
    if (!page.has_value()) break;
    sequence.pages.push_back(*page);
  }
  sequence.num_computed =
      static_cast<int32_t>(sequence.pages.size()) * options.page_size;
}

// Gives the pages back, last first; what was published stays findable.
void Scheduler::Impl::DropPages(LiveSequence& sequence) {
  while (!sequence.pages.empty()) {
    pool.Release(sequence.pages.back());
    sequence.pages.pop_back();
  }
  sequence.num_computed = 0;
}

void Scheduler::Impl::Start(LiveSequence& sequence) {
  waiting.Erase(&sequence);
  running.insert(&sequence);
  sequence.state = LiveSequence::State::kRunning;
  if (sequence.was_started) return;
  sequence.was_started = true;
  sequence.num_cached = sequence.num_computed;
  if (options.prefix_cache && !sequence.all_logits) {
    prefix_query_tokens += sequence.num_prompt;
    prefix_hit_tokens += sequence.num_cached;
  }
}

void Scheduler::Impl::Preempt(LiveSequence& sequence, StepPlan& plan) {
  running.erase(&sequence);
  DropPages(sequence);
  sequence.state = LiveSequence::State::kWaiting;
  sequence.preempted_in = schedules;
  ++sequence.num_preemptions;
  ++preemptions;
  waiting.Insert(&sequence);
  plan.preempted.push_back(sequence.id);
}

void Scheduler::Impl::GiveRows(StepPlan& plan) {
  int32_t decodes = 0;
  for (const LiveSequence* sequence : running) {
    decodes += sequence->decodes() ? 1 : 0;
  }
  // Each sequence that generates has its row, and its logits, set aside.
  Budget budget{options.max_batch_rows - decodes,
                options.max_logit_rows - decodes};
  for (auto it = running.begin(); it != running.end(); ++it) {
    LiveSequence& sequence = **it;
    const int32_t wanted = RowsFor(sequence, budget);
    if (wanted == 0) continue;
    const int32_t rows = TakePages(sequence, wanted, plan);
    if (rows == 0) {
      // It ranks lowest and nothing is left for it.
      Preempt(sequence, plan);
      break;
    }
    const StepItem item = MakeItem(sequence, rows);
    const int32_t logit_rows = LogitRows(item);
    if (!sequence.decodes()) {
      budget.rows -= rows;
      budget.logit_rows -= logit_rows;
    }
    plan.rows += rows;
    plan.generated_rows += item.generated ? rows : 0;
    plan.logit_rows += logit_rows;
    plan.items.push_back(item);
    sequence.in_plan = true;
    pending.push_back(&sequence);
  }
  // The same order in both: generated rows first, by rank within each kind.
  std::stable_partition(plan.items.begin(), plan.items.end(),
                        [](const StepItem& item) { return item.generated; });
  std::stable_partition(
      pending.begin(), pending.end(),
      [](const LiveSequence* sequence) { return !sequence->in_prompt(); });
}

// Rows that the budgets allow the sequence in this step.
int32_t Scheduler::Impl::RowsFor(const LiveSequence& sequence,
                                 const Budget& budget) const {
  if (sequence.decodes()) return 1;
  const int32_t rows = std::min(RowsWanted(sequence), budget.rows);
  const int32_t first = sequence.num_computed;
  if (sequence.wants_all_logits()) return std::min(rows, budget.logit_rows);
  // Without a logit row left its last token waits for the next step.
  const bool waits =
      sequence.samples_at(first + rows) && budget.logit_rows == 0;
  return waits ? rows - 1 : rows;
}

// Takes pages for the next `rows` tokens, preempting sequences of lower rank
// as it must. Returns for how many of them there are pages.
int32_t Scheduler::Impl::TakePages(LiveSequence& sequence, int32_t rows,
                                   StepPlan& plan) {
  const int32_t pages = PagesFor(int64_t{sequence.num_computed} + rows);
  while (static_cast<int32_t>(sequence.pages.size()) < pages) {
    const std::optional<int32_t> page = pool.Allocate();
    if (page.has_value()) {
      sequence.pages.push_back(*page);
      continue;
    }
    LiveSequence& victim = **running.rbegin();
    if (&victim == &sequence) break;
    Preempt(victim, plan);
  }
  const auto room =
      static_cast<int64_t>(sequence.pages.size()) * options.page_size;
  return static_cast<int32_t>(
      std::min<int64_t>(rows, room - sequence.num_computed));
}

}  // namespace nibble::scheduler
