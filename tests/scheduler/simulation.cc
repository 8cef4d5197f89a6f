#include "tests/scheduler/simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <set>

namespace nibble::scheduler {
namespace {

// splitmix64's finalizer.
uint64_t Mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

bool Outranks(const Sequence& a, const Sequence& b) {
  return a.priority != b.priority ? a.priority > b.priority
                                  : a.arrival < b.arrival;
}

}  // namespace

void PrintTo(const ItemRecord& item, std::ostream* out) {
  *out << "{" << item.id << ": " << item.first << "+" << item.count
       << (item.generated ? " generated" : "")
       << (item.samples ? " samples" : "")
       << (item.all_logits ? " all_logits" : "") << "}";
}

Simulation::Simulation(const SimulationOptions& options)
    : options_(options), scheduler_(options.scheduler, options.hash) {
  cells_.resize(static_cast<size_t>(options.scheduler.pages) *
                options.scheduler.page_size);
}

void Simulation::Add(SequenceParams params) {
  live_[params.id] = params;
  generated_[params.id].clear();
  logits_[params.id].assign(params.prompt.size(), 0);
  finished_.erase(params.id);
  scheduler_.Add(std::move(params));
}

bool Simulation::Cancel(SequenceId id) {
  live_.erase(id);
  generated_.erase(id);
  const bool was_live = scheduler_.Cancel(id);
  EXPECT_EQ(scheduler_.Find(id), nullptr);
  CheckPages();
  return was_live;
}

uint64_t Simulation::Extend(uint64_t prefix, int32_t token,
                            bool generated) const {
  const bool marked = generated && options_.scheduler.origin_matters;
  return Mix(prefix * 31 + static_cast<uint64_t>(token) * 2 + marked + 1);
}

int32_t Simulation::NextToken(uint64_t prefix) const {
  return static_cast<int32_t>(Mix(prefix + 17) % options_.vocab);
}

bool Simulation::Stops(uint64_t prefix) const {
  return options_.stop_one_in > 0 &&
         Mix(prefix + 29) % options_.stop_one_in == 0;
}

std::vector<int32_t> Simulation::Alone(const SequenceParams& params) const {
  uint64_t prefix = Mix(params.cache_salt);
  for (const int32_t token : params.prompt) {
    prefix = Extend(prefix, token, false);
  }
  std::vector<int32_t> tokens;
  while (static_cast<int32_t>(tokens.size()) < params.max_new_tokens) {
    tokens.push_back(NextToken(prefix));
    if (Stops(prefix)) break;
    prefix = Extend(prefix, tokens.back(), true);
  }
  return tokens;
}

StepRecord Simulation::Step(const std::vector<SequenceId>& cancel) {
  return StepWith([&] {
    for (const SequenceId id : cancel) Cancel(id);
  });
}

StepRecord Simulation::StepWith(const std::function<void()>& between) {
  const bool had_work = !scheduler_.idle();
  const StepPlan plan = scheduler_.Schedule();
  EXPECT_EQ(plan.empty(), !had_work);
  CheckPlan(plan);
  CheckPages();
  // What the items point to before anything else happens.
  std::vector<const Sequence*> planned;
  for (const StepItem& item : plan.items) {
    planned.push_back(scheduler_.Find(item.sequence->id));
    EXPECT_EQ(planned.back(), item.sequence);
    cached_[item.sequence->id] = item.sequence->num_cached;
  }
  between();
  StepRecord record{.items = {},
                    .preempted = plan.preempted,
                    .freed = {},
                    .rows = plan.rows,
                    .generated_rows = plan.generated_rows,
                    .logit_rows = plan.logit_rows};
  std::vector<SampledToken> sampled;
  for (const StepItem& item : plan.items) {
    const SequenceId id = item.sequence->id;
    record.items.push_back({id, item.first, item.count, item.generated,
                            item.samples, item.all_logits});
    const bool is_live = scheduler_.Find(id) == item.sequence;
    const uint64_t prefix = Compute(item, is_live);
    if (is_live) NoteLogits(item);
    if (!item.samples) continue;
    // Every other cancelled one leaves its token out.
    if (!is_live && id % 2 == 0) continue;
    sampled.push_back({id, NextToken(prefix), Stops(prefix)});
    if (is_live) generated_[id].push_back(sampled.back().token);
  }
  std::reverse(sampled.begin(), sampled.end());
  record.freed = scheduler_.Commit(plan, sampled);
  NoteFreed(record.freed);
  CheckPages();
  return record;
}

int Simulation::RunUntilIdle(int max_steps) {
  int steps = 0;
  while (!scheduler_.idle() && steps < max_steps) {
    Step();
    ++steps;
  }
  EXPECT_TRUE(scheduler_.idle()) << "not idle after " << steps << " steps";
  EXPECT_EQ(scheduler_.pool().used(), 0);
  return steps;
}

void Simulation::CheckPlan(const StepPlan& plan) const {
  int32_t rows = 0;
  int32_t generated_rows = 0;
  int32_t logit_rows = 0;
  bool seen_prompt = false;
  std::set<const Sequence*> seen;
  for (const StepItem& item : plan.items) {
    EXPECT_TRUE(seen.insert(item.sequence).second);
    EXPECT_FALSE(item.generated && seen_prompt);
    seen_prompt |= !item.generated;
    rows += item.count;
    generated_rows += item.generated ? item.count : 0;
    logit_rows += item.all_logits ? item.count : item.samples;
    CheckItem(item);
  }
  EXPECT_EQ(plan.rows, rows);
  EXPECT_EQ(plan.generated_rows, generated_rows);
  EXPECT_EQ(plan.logit_rows, logit_rows);
  EXPECT_LE(rows, options_.scheduler.max_batch_rows);
  EXPECT_LE(logit_rows, options_.scheduler.max_logit_rows);
  const SchedulerStats stats = scheduler_.stats();
  EXPECT_LE(stats.running, options_.scheduler.max_sequences);
  EXPECT_EQ(stats.running + stats.waiting, static_cast<int32_t>(live_.size()));
  CheckPreempted(plan);
}

void Simulation::CheckItem(const StepItem& item) const {
  const Sequence& sequence = *item.sequence;
  EXPECT_EQ(item.first, sequence.num_computed);
  EXPECT_GE(item.count, 1);
  const int32_t end = item.first + item.count;
  EXPECT_EQ(item.generated, item.first >= sequence.num_prompt);
  EXPECT_LE(end, item.generated ? sequence.num_tokens() : sequence.num_prompt);
  EXPECT_EQ(item.samples,
            end == sequence.num_tokens() && end < sequence.max_tokens);
  EXPECT_TRUE(!item.all_logits || (sequence.all_logits && !item.generated));
}

// The preempted ones have nothing left, and all that run outrank them.
void Simulation::CheckPreempted(const StepPlan& plan) const {
  for (const SequenceId id : plan.preempted) {
    const Sequence* const loser = scheduler_.Find(id);
    ASSERT_NE(loser, nullptr);
    EXPECT_TRUE(loser->pages.empty());
    EXPECT_EQ(loser->num_computed, 0);
    EXPECT_GE(loser->num_preemptions, 1);
    for (const StepItem& item : plan.items) {
      EXPECT_TRUE(Outranks(*item.sequence, *loser));
    }
  }
}

void Simulation::CheckPages() const {
  const PagePool& pool = scheduler_.pool();
  pool.CheckConsistency();
  std::vector<int32_t> counts(pool.total(), 0);
  for (const auto& [id, params] : live_) {
    const Sequence* const sequence = scheduler_.Find(id);
    ASSERT_NE(sequence, nullptr);
    for (const int32_t page : sequence->pages) ++counts[page];
  }
  for (int32_t page = 0; page < pool.total(); ++page) {
    ASSERT_EQ(pool.count(page), counts[page]) << "page " << page;
  }
  ASSERT_EQ(pool.used() + pool.cached() + pool.empty(), pool.total());
}

const Simulation::Cell& Simulation::CellAt(const Sequence& sequence,
                                           int32_t position) const {
  const int32_t size = options_.scheduler.page_size;
  return cells_[static_cast<size_t>(sequence.pages[position / size]) * size +
                position % size];
}

uint64_t Simulation::Compute(const StepItem& item, bool is_live) {
  const Sequence& sequence = *item.sequence;
  const int32_t size = options_.scheduler.page_size;
  const int32_t end = item.first + item.count;
  EXPECT_GE(static_cast<int32_t>(sequence.pages.size()) * size, end);
  uint64_t expected = Mix(sequence.cache_salt);
  uint64_t held = expected;
  for (int32_t position = 0; position < item.first; ++position) {
    const Cell& cell = CellAt(sequence, position);
    expected = Extend(expected, sequence.tokens[position],
                      position >= sequence.num_prompt);
    EXPECT_EQ(cell.token, sequence.tokens[position]);
    EXPECT_EQ(cell.position, position);
    EXPECT_EQ(cell.prefix, expected)
        << "sequence " << sequence.id << " reads another's page";
    held = cell.prefix;
  }
  for (int32_t position = item.first; position < end; ++position) {
    const int32_t page = sequence.pages[position / size];
    // Shared pages are never written; a cancelled sequence's are nobody's.
    EXPECT_EQ(scheduler_.pool().count(page), is_live ? 1 : 0);
    held = Extend(held, sequence.tokens[position],
                  position >= sequence.num_prompt);
    cells_[static_cast<size_t>(page) * size + position % size] = {
        sequence.tokens[position], position, held};
  }
  return held;
}

void Simulation::NoteLogits(const StepItem& item) {
  if (!item.all_logits) return;
  std::vector<int32_t>& given = logits_.at(item.sequence->id);
  for (int32_t i = 0; i < item.count; ++i) ++given[item.first + i];
}

void Simulation::NoteFreed(const std::vector<SequenceId>& freed) {
  for (const SequenceId id : freed) {
    const auto params = live_.find(id);
    ASSERT_NE(params, live_.end());
    EXPECT_EQ(generated_[id], Alone(params->second)) << "sequence " << id;
    const int32_t times = params->second.all_logits ? 1 : 0;
    for (const int32_t given : logits_.at(id)) EXPECT_EQ(given, times);
    finished_[id] = std::move(generated_[id]);
    generated_.erase(id);
    live_.erase(params);
    EXPECT_EQ(scheduler_.Find(id), nullptr);
  }
}

}  // namespace nibble::scheduler
