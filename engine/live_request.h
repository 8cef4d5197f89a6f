// A request while the engine works on it, and its outputs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "engine/stop_checker.h"
#include "engine/token_sink.h"
#include "kernels/sampling.h"
#include "model/tokenizer.h"
#include "scheduler/sequence.h"

namespace nibble::engine {

struct LiveRequest;

// One of a request's n outputs: a sequence of the scheduler and the text made
// of it. Owned by its LiveRequest, engine thread only after Submit.
class Output final {
 public:
  Output(const LiveRequest& request, int32_t index);

  int32_t index() const { return index_; }
  // The scheduler's name for it, given to no other output ever; 0 until the
  // scheduler knows it.
  scheduler::SequenceId sequence() const { return sequence_; }
  void set_sequence(scheduler::SequenceId id) { sequence_ = id; }
  const LiveRequest& request() const { return *request_; }
  const kernels::SamplingParams& sampling() const { return sampling_; }

  // The ids that must not be chosen next.
  std::span<const int32_t> Banned() const;
  bool ended() const { return ended_; }
  FinishReason finish_reason() const { return finish_reason_; }  // once ended
  const Usage& usage() const { return usage_; }
  const Timings& timings() const { return timings_; }

  // Books that a step computes rows of it; the first call ends its wait.
  void CountRows(int32_t rows, bool generated, int32_t cached_tokens,
                 Clock::time_point now);

  // What a sampled token does to the output.
  struct Taken {
    Delta delta;
    bool first = false;     // the output's first token
    Clock::duration gap{};  // since the token before, unless first
  };
  Taken Take(const kernels::SampleResult& result,
             const model::Tokenizer& tokenizer, Clock::time_point now);

  // Ends an output that was to generate nothing.
  Delta EndWithoutTokens(Clock::time_point now);

 private:
  // A stop rule that hit.
  struct Stop {
    FinishReason reason;
    // Of a stop string its index, of a stop token its id.
    int32_t which = 0;
  };
  std::optional<Stop> CheckToken(int32_t token,
                                 const model::Tokenizer& tokenizer) const;
  std::optional<Stop> ExtendText(int32_t token,
                                 const model::Tokenizer& tokenizer,
                                 std::string& text);
  std::optional<Stop> FlushText(std::string& text);
  StopSearch Search() const;
  Stop LengthStop() const;
  OutputFinish MakeFinish(Stop stop);

  const LiveRequest* request_;
  int32_t index_;
  scheduler::SequenceId sequence_ = 0;
  kernels::SamplingParams sampling_;
  StopChecker text_;
  bool scheduled_ = false;
  bool ended_ = false;
  FinishReason finish_reason_ = FinishReason::kError;
  Usage usage_;
  Timings timings_;
  Clock::time_point scheduled_at_{};
  Clock::time_point first_token_at_{};
  Clock::time_point last_token_at_{};
};

// Everything about one accepted request. Made by Submit, handed through the
// Inbox, then owned by the engine thread alone.
struct LiveRequest {
  LiveRequest(Request r, TokenSink* s) : request(std::move(r)), sink(s) {}
  LiveRequest(const LiveRequest&) = delete;
  LiveRequest& operator=(const LiveRequest&) = delete;

  // Fills what follows from the request and its prompt.
  void Prepare(std::vector<int32_t> ids, std::string text,
               const model::Tokenizer& tokenizer);

  bool WantsPromptLogprobs() const {
    return request.output.prompt_logprobs >= 0;
  }
  bool WantsTokens() const;
  int32_t prompt_tokens() const { return static_cast<int32_t>(prompt.size()); }
  int32_t live_outputs() const;

  // Books the logprobs that were computed for prompt token `position`.
  void TakePromptLogprob(int32_t position, const kernels::SampleResult& result);
  // The sum over outputs, the prompt counted once.
  Usage TotalUsage() const;

  Request request;
  TokenSink* sink;  // the caller's, alive until its OnFinish has returned
  RequestHandle handle = 0;
  std::vector<int32_t> prompt;
  PromptInfo prompt_info;           // until it is sent
  int32_t max_new_tokens = 0;       // the least of what was asked and what fits
  bool limited_by_context = false;  // that the context or the pool chose it
  std::vector<int32_t> end_tokens;  // banned before min_new_tokens
  std::vector<std::unique_ptr<Output>> outputs;
  bool started = false;         // a row of it was scheduled
  bool failed = false;          // its logits were not finite
  bool prompt_sent = false;     // OnPrompt
  bool siblings_added = false;  // outputs after the first are in the scheduler
};

}  // namespace nibble::engine
