#include "engine/engine_loop.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "engine/errors.h"

namespace nibble::engine {
namespace {

constexpr RequestHandle kAllHandles = std::numeric_limits<RequestHandle>::max();

int64_t Millis(Clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration)
      .count();
}

// Seeded per process, so that nobody can prepare salts that collide.
uint64_t SaltHash(const std::string& salt) {
  return salt.empty() ? 0 : absl::HashOf(salt);
}

absl::Status DeadlineError(bool started) {
  if (started) {
    return absl::DeadlineExceededError(
        "the deadline passed while the answer was being computed");
  }
  return RejectionError(Rejection::kDeadline,
                        absl::StatusCode::kDeadlineExceeded,
                        "the deadline passed before anything was computed");
}

}  // namespace

EngineLoop::EngineLoop(ModelRunner& runner, scheduler::Scheduler& scheduler,
                       Inbox& inbox, EngineObserver* observer)
    : runner_(runner),
      scheduler_(scheduler),
      inbox_(inbox),
      observer_(observer),
      builder_(scheduler.options().page_size) {}

void EngineLoop::Run() {
  while (Turn()) {
  }
}

bool EngineLoop::Turn() {
  Mail mail = inbox_.Take(live_.empty());
  for (auto& request : mail.submitted) Accept(std::move(request));
  const Clock::time_point now = Clock::now();
  for (const RequestHandle handle : mail.cancelled) {
    const auto found = live_.find(handle);
    if (found == live_.end()) continue;
    End(*found->second, absl::CancelledError("the request was cancelled"),
        FinishReason::kCancelled, now);
  }
  CancelBefore(mail.stop ? kAllHandles : mail.cancel_before, now);
  ExpireLate(now);
  if (!live_.empty()) Step();
  Publish();
  Emit();
  return !mail.stop;
}

void EngineLoop::Accept(std::unique_ptr<LiveRequest> request) {
  LiveRequest& accepted = *request;
  live_.emplace(accepted.handle, std::move(request));
  AddSequence(accepted, *accepted.outputs.front());
}

void EngineLoop::AddSequence(LiveRequest& request, Output& output) {
  scheduler::SequenceParams params;
  params.id = next_sequence_++;
  params.prompt = request.prompt;
  params.max_new_tokens = request.max_new_tokens;
  params.priority = request.request.priority;
  // Once a request is enough: the prompt is the same for every output.
  params.all_logits = request.WantsPromptLogprobs() && output.index() == 0;
  params.cache_salt = SaltHash(request.request.cache_salt);
  output.set_sequence(params.id);
  outputs_.emplace(params.id, std::make_pair(&request, &output));
  scheduler_.Add(std::move(params));
}

void EngineLoop::AddSiblings(LiveRequest& request) {
  request.siblings_added = true;
  for (size_t i = 1; i < request.outputs.size(); ++i) {
    AddSequence(request, *request.outputs[i]);
  }
}

void EngineLoop::CancelBefore(RequestHandle end, Clock::time_point now) {
  std::vector<LiveRequest*> doomed;
  for (const auto& [handle, request] : live_) {
    if (handle < end) doomed.push_back(request.get());
  }
  for (LiveRequest* request : doomed) {
    End(*request, absl::CancelledError("the server cancelled the request"),
        FinishReason::kCancelled, now);
  }
}

void EngineLoop::ExpireLate(Clock::time_point now) {
  std::vector<std::pair<LiveRequest*, absl::Status>> late;
  for (const auto& [handle, live] : live_) {
    const Request& request = live->request;
    const Clock::duration waited = now - request.arrival;
    if (now >= request.deadline) {
      late.emplace_back(live.get(), DeadlineError(live->started));
    } else if (!live->started && waited > request.max_queue &&
               request.arrival < last_step_) {
      // A request that finds the engine idle is never late: it runs in the
      // very next step, also with a limit of zero.
      late.emplace_back(
          live.get(),
          RetryError(
              Rejection::kQueueTime,
              absl::StrCat("max_queue_ms: waited ", Millis(waited),
                           " ms, the limit is ", Millis(request.max_queue)),
              waited));
    }
  }
  for (auto& [request, status] : late) {
    End(*request, std::move(status), FinishReason::kDeadline, now);
  }
}

void EngineLoop::Step() {
  const Clock::time_point begin = Clock::now();
  const scheduler::StepPlan plan = scheduler_.Schedule();
  // Every live request has a sequence in the scheduler, and one always fits.
  NIBBLE_CHECK(!plan.empty());
  CountRows(plan, begin);
  builder_.Build(plan, outputs_);
  const Clock::time_point model_begin = Clock::now();
  runner_.Step(builder_.batch(), builder_.rows(), builder_.results());
  const Clock::time_point now = Clock::now();

  sampled_.clear();
  step_tokens_ = 0;
  touched_.clear();
  TakeResults(now);
  EndFailed(now);
  const std::vector<scheduler::SequenceId> freed =
      scheduler_.Commit(plan, sampled_);
  EndWithoutTokens(freed, now);
  for (const scheduler::SequenceId id : freed) outputs_.erase(id);
  SettleTouched(now);
  ReportStep(plan, begin, now - model_begin);
}

void EngineLoop::CountRows(const scheduler::StepPlan& plan,
                           Clock::time_point now) {
  for (const scheduler::StepItem& item : plan.items) {
    const auto [request, output] = outputs_.at(item.sequence->id);
    request->started = true;
    output->CountRows(item.count, item.generated, item.sequence->num_cached,
                      now);
  }
}

void EngineLoop::TakeResults(Clock::time_point now) {
  const std::span<const LogitUse> uses = builder_.uses();
  const std::span<const kernels::SampleResult> results = builder_.results();
  for (size_t i = 0; i < uses.size(); ++i) {
    LiveRequest& request = *uses[i].request;
    touched_.push_back(&request);
    if (!results[i].finite) request.failed = true;
    if (request.failed) continue;
    if (uses[i].prompt_position >= 0) {
      request.TakePromptLogprob(uses[i].prompt_position, results[i]);
    } else {
      TakeToken(uses[i], results[i], now);
    }
  }
  std::sort(touched_.begin(), touched_.end());
  touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
}

void EngineLoop::TakeToken(const LogitUse& use,
                           const kernels::SampleResult& result,
                           Clock::time_point now) {
  SendPrompt(*use.request);
  Output::Taken taken = use.output->Take(result, runner_.tokenizer(), now);
  if (observer_ != nullptr) {
    if (!taken.first) {
      observer_->OnInterToken(taken.gap);
    } else if (use.output->index() == 0) {
      observer_->OnFirstToken(use.output->timings().first_token);
    }
  }
  Delta& delta = taken.delta;
  const bool finished = delta.finish.has_value();
  ++step_tokens_;
  sampled_.push_back({use.output->sequence(), result.token, finished});
  if (finished || !delta.text.empty() || !delta.tokens.empty()) {
    events_.push_back({use.request->sink, std::move(delta)});
  }
}

void EngineLoop::SendPrompt(LiveRequest& request) {
  if (std::exchange(request.prompt_sent, true)) return;
  PromptInfo info;
  info.prompt_tokens = request.prompt_info.prompt_tokens;
  // The outputs' first deltas need the text again, nobody the tokens.
  info.echo = request.prompt_info.echo;
  info.tokens = std::move(request.prompt_info.tokens);
  events_.push_back({request.sink, std::move(info)});
}

void EngineLoop::EndFailed(Clock::time_point now) {
  const auto is_failed = [](const LiveRequest* r) { return r->failed; };
  const auto failed =
      std::stable_partition(touched_.begin(), touched_.end(),
                            [&](const auto* r) { return !is_failed(r); });
  for (auto it = failed; it != touched_.end(); ++it) {
    // Commit skips what End cancels here.
    End(**it, absl::InternalError("the model gave logits that are not finite"),
        FinishReason::kError, now);
  }
  touched_.erase(failed, touched_.end());
  std::erase_if(sampled_, [&](const scheduler::SampledToken& token) {
    return !outputs_.contains(token.id);
  });
}

void EngineLoop::EndWithoutTokens(
    const std::vector<scheduler::SequenceId>& freed, Clock::time_point now) {
  for (const scheduler::SequenceId id : freed) {
    const auto [request, output] = outputs_.at(id);
    if (output->ended()) continue;
    SendPrompt(*request);
    // The prompt is computed once; there is nothing to sample from it.
    for (const auto& each : request->outputs) {
      events_.push_back({request->sink, each->EndWithoutTokens(now)});
    }
    touched_.push_back(request);
  }
}

void EngineLoop::SettleTouched(Clock::time_point now) {
  std::sort(touched_.begin(), touched_.end());
  const auto end = std::unique(touched_.begin(), touched_.end());
  for (auto it = touched_.begin(); it != end; ++it) {
    LiveRequest& request = **it;
    if (request.live_outputs() == 0) {
      End(request, absl::OkStatus(), request.outputs.front()->finish_reason(),
          now);
    } else if (request.prompt_sent && !request.siblings_added) {
      AddSiblings(request);
    }
  }
  touched_.clear();
}

void EngineLoop::ReportStep(const scheduler::StepPlan& plan,
                            Clock::time_point begin, Clock::duration model) {
  last_step_ = Clock::now();
  if (observer_ == nullptr) return;
  StepStats stats;
  stats.duration = last_step_ - begin;
  stats.model = model;
  stats.quantize = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(runner_.last_quantize_seconds()));
  stats.narrow_rows = plan.generated_rows;
  stats.wide_rows = plan.rows - plan.generated_rows;
  stats.sequences = static_cast<int32_t>(plan.items.size());
  stats.preempted = static_cast<int32_t>(plan.preempted.size());
  stats.sampled_tokens = step_tokens_;
  observer_->OnStep(stats);
}

void EngineLoop::End(LiveRequest& request, absl::Status status,
                     FinishReason reason, Clock::time_point now) {
  for (const auto& output : request.outputs) {
    if (outputs_.erase(output->sequence()) > 0) {
      scheduler_.Cancel(output->sequence());
    }
  }
  if (observer_ != nullptr) Report(request, status, reason, now);
  events_.push_back(
      {request.sink, RequestResult{std::move(status), request.TotalUsage()}});
  ended_ids_.push_back(std::move(request.request.id));
  live_.erase(request.handle);
}

void EngineLoop::Report(const LiveRequest& request, const absl::Status& status,
                        FinishReason reason, Clock::time_point now) {
  if (!request.started &&
      (absl::IsDeadlineExceeded(status) || absl::IsResourceExhausted(status))) {
    observer_->OnRejected(ErrorRejection(status));
    return;
  }
  RequestStats stats;
  stats.reason = reason;
  stats.usage = request.TotalUsage();
  stats.timings = request.outputs.front()->timings();
  stats.total = now - request.request.arrival;
  if (!request.started) stats.timings.queue = stats.total;
  stats.max_new_tokens = request.max_new_tokens;
  observer_->OnFinished(stats);
}

void EngineLoop::Publish() {
  Progress progress;
  for (const auto& [handle, request] : live_) {
    if (request->started) {
      ++progress.requests_running;
      progress.outputs_running += request->live_outputs();
    } else {
      ++progress.requests_waiting;
      progress.waiting_tokens += request->prompt_tokens();
    }
  }
  progress.ended = std::exchange(ended_ids_, {});
  progress.scheduler = scheduler_.stats();
  progress.last_step = last_step_;
  inbox_.Publish(std::move(progress));
}

void EngineLoop::Emit() {
  for (Event& event : std::exchange(events_, {})) {
    TokenSink& sink = *event.sink;
    if (auto* prompt = std::get_if<PromptInfo>(&event.what)) {
      sink.OnPrompt(std::move(*prompt));
    } else if (auto* delta = std::get_if<Delta>(&event.what)) {
      sink.OnDelta(std::move(*delta));
    } else {
      sink.OnFinish(std::move(std::get<RequestResult>(event.what)));
    }
  }
}

}  // namespace nibble::engine
