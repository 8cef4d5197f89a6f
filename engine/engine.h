// One model, served: requests in, tokens out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model_runner.h"
#include "engine/observer.h"
#include "engine/request.h"
#include "engine/token_sink.h"
#include "model/chat_template.h"
#include "scheduler/scheduler.h"

namespace nibble::engine {

struct EngineOptions {
  std::string name;            // the served model's name, for logs
  int32_t max_sequences = 64;  // running at once
  int32_t max_queue = 256;     // requests waiting; 0 refuses all that wait
  int64_t max_queue_tokens = 1 << 20;  // prompt tokens waiting
  int32_t max_context = 0;             // tokens; 0: the model's own
  int64_t max_prompt_bytes = 4 << 20;  // checked before tokenizing
  int32_t default_max_new_tokens = 1024;
  int32_t max_outputs = 16;   // n of one request
  int32_t max_logprobs = 20;  // top logprobs of one token
  int32_t max_stop_strings = 16;
  int32_t max_stop_bytes = 256;  // of one stop string
  bool prefix_cache = true;
  bool stable_numerics = true;
};

// Owns the runner, the scheduler and one thread that steps them. Submit,
// Cancel, Drain, CancelAll and snapshot may be called from any thread.
// engine/README.md is the contract of threads, owners and invariants.
class Engine final {
 public:
  // `observer` may be null and outlives the engine.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(
      EngineOptions options, std::unique_ptr<ModelRunner> runner,
      EngineObserver* observer);
  // Cancels what is live, tells every sink, joins the thread.
  ~Engine();

  // Checks the request, tokenizes it and queues it. On OK the sink will get
  // exactly one OnFinish; otherwise none of its methods is called. Errors are
  // those of design section 6; field errors name the field as the proto
  // spells it.
  absl::StatusOr<RequestHandle> Submit(Request request, TokenSink* sink);

  // Ends a request before the next step; the sink gets its OnFinish with
  // CANCELLED soon. A handle that has ended is ignored.
  void Cancel(RequestHandle handle);

  // From now on Submit answers UNAVAILABLE; what is live goes on.
  void Drain();
  // Cancels every live request.
  void CancelAll();

  EngineSnapshot snapshot() const;
  const EngineOptions& options() const;
  const RunnerInfo& info() const;
  const model::Tokenizer& tokenizer() const;
  // Why chat requests fail, or the recognised template.
  const absl::StatusOr<model::ChatTemplate>& chat_template() const;
  // Tokens a request may take, prompt and generated.
  int32_t max_context() const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::engine
