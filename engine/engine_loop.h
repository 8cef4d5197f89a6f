// What the engine thread does.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/batch_builder.h"
#include "engine/engine.h"
#include "engine/inbox.h"
#include "engine/live_request.h"
#include "scheduler/scheduler.h"

namespace nibble::engine {

// Turns of the engine thread: take the mail, end what is cancelled or late,
// run one step, publish, tell the sinks. Owned by the Engine; all of it
// belongs to the engine thread. What it refers to outlives it.
class EngineLoop final {
 public:
  EngineLoop(ModelRunner& runner, scheduler::Scheduler& scheduler, Inbox& inbox,
             EngineObserver* observer);

  // Runs until Inbox::Stop, then ends what is live.
  void Run();

 private:
  // Something a sink is to hear, once the state it tells of is published.
  struct Event {
    TokenSink* sink;
    std::variant<PromptInfo, Delta, RequestResult> what;
  };

  // Returns false when the engine is to stop.
  bool Turn();
  void Accept(std::unique_ptr<LiveRequest> request);
  void AddSequence(LiveRequest& request, Output& output);
  // After the first output's prompt: the others, which then share its pages.
  void AddSiblings(LiveRequest& request);
  // Ends every request before the handle.
  void CancelBefore(RequestHandle end, Clock::time_point now);
  // Ends what is past its deadline, or has waited too long.
  void ExpireLate(Clock::time_point now);

  void Step();
  // Marks the outputs that get rows in this step.
  void CountRows(const scheduler::StepPlan& plan, Clock::time_point now);
  // Turns the step's logits into tokens, deltas and ended requests.
  void TakeResults(Clock::time_point now);
  void TakeToken(const LogitUse& use, const kernels::SampleResult& result,
                 Clock::time_point now);
  // Ends the prompt-only outputs among the sequences the scheduler freed.
  void EndWithoutTokens(const std::vector<scheduler::SequenceId>& freed,
                        Clock::time_point now);
  // Of the requests that had tokens in this step: ends the failed and the
  // complete ones, starts the further outputs of the others.
  void EndFailed(Clock::time_point now);
  void SettleTouched(Clock::time_point now);
  void SendPrompt(LiveRequest& request);
  void ReportStep(const scheduler::StepPlan& plan, Clock::time_point begin,
                  Clock::duration model);

  // Ends a request for good: drops its sequences, reports, forgets it.
  void End(LiveRequest& request, absl::Status status, FinishReason reason,
           Clock::time_point now);
  void Report(const LiveRequest& request, const absl::Status& status,
              FinishReason reason, Clock::time_point now);

  void Publish();
  void Emit();

  ModelRunner& runner_;
  scheduler::Scheduler& scheduler_;
  Inbox& inbox_;
  EngineObserver* observer_;  // may be null
  BatchBuilder builder_;

  absl::flat_hash_map<RequestHandle, std::unique_ptr<LiveRequest>> live_;
  OutputMap outputs_;
  scheduler::SequenceId next_sequence_ = 1;
  Clock::time_point last_step_ = Clock::now();

  // Filled during a turn.
  std::vector<scheduler::SampledToken> sampled_;
  int32_t step_tokens_ = 0;  // sampled, also for requests that fail in it
  std::vector<LiveRequest*> touched_;  // had results in this step
  std::vector<Event> events_;
  std::vector<std::string> ended_ids_;
};

}  // namespace nibble::engine
