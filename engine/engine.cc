#include "engine/engine.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "engine/engine_loop.h"
#include "engine/errors.h"
#include "engine/inbox.h"
#include "engine/prompt.h"
#include "engine/validate.h"

namespace nibble::engine {
namespace {

scheduler::SchedulerOptions SchedulerOptionsFor(const EngineOptions& options,
                                                const RunnerInfo& info) {
  scheduler::SchedulerOptions result;
  result.max_batch_rows = info.max_batch_rows;
  result.max_sequences = options.max_sequences;
  result.max_logit_rows = info.max_logit_rows;
  result.page_size = info.page_size;
  result.pages = info.pages;
  result.prefix_cache = options.prefix_cache;
  result.origin_matters = options.stable_numerics;
  return result;
}

absl::Status CheckOptions(const EngineOptions& options,
                          const RunnerInfo& info) {
  const auto refuse = [&](std::string_view name, int64_t value,
                          std::string_view problem) {
    return absl::InvalidArgumentError(
        absl::StrCat("model \"", options.name, "\": ", std::string(name), " ",
                     value, " ", std::string(problem)));
  };
  if (options.max_sequences < 1) {
    return refuse("max_sequences", options.max_sequences, "is less than 1");
  }
  if (options.max_sequences > info.max_logit_rows) {
    return refuse("max_sequences", options.max_sequences,
                  absl::StrCat("is more than the ", info.max_logit_rows,
                               " rows of one step the model samples"));
  }
  if (options.max_sequences > info.max_batch_rows) {
    return refuse("max_sequences", options.max_sequences,
                  absl::StrCat("is more than the ", info.max_batch_rows,
                               " rows of one step (max_batch_rows)"));
  }
  if (options.max_queue < 0) {
    return refuse("max_queue", options.max_queue, "is negative");
  }
  if (options.max_context < 0) {
    return refuse("max_context", options.max_context, "is negative");
  }
  if (options.default_max_new_tokens < 1) {
    return refuse("default_max_new_tokens", options.default_max_new_tokens,
                  "is less than 1");
  }
  return absl::OkStatus();
}

absl::StatusOr<model::ChatTemplate> RecogniseTemplate(
    const model::Tokenizer& tokenizer) {
  const auto spelling = [&](std::optional<int32_t> id) {
    return id.has_value() ? tokenizer.TokenBytes(*id, /*special=*/true)
                          : std::string_view();
  };
  return model::ChatTemplate::Recognise(tokenizer.data().chat_template,
                                        spelling(tokenizer.bos()),
                                        spelling(tokenizer.eos()));
}

}  // namespace

struct Engine::Impl {
  Impl(EngineOptions o, std::unique_ptr<ModelRunner> r, EngineObserver* obs)
      : options(std::move(o)),
        runner(std::move(r)),
        observer(obs),
        chat_template(RecogniseTemplate(runner->tokenizer())),
        scheduler(SchedulerOptionsFor(options, runner->info())),
        inbox(options),
        loop(*runner, scheduler, inbox, observer) {
    const int32_t model_context = runner->info().context_length;
    max_context = options.max_context == 0
                      ? model_context
                      : std::min(options.max_context, model_context);
  }

  absl::StatusOr<RequestHandle> Admit(Request request, TokenSink* sink);
  // Sets how many tokens the request may generate, or says why none can.
  absl::Status SetLength(LiveRequest& live) const;

  EngineOptions options;
  std::unique_ptr<ModelRunner> runner;
  EngineObserver* observer;
  absl::StatusOr<model::ChatTemplate> chat_template;
  int32_t max_context = 0;
  scheduler::Scheduler scheduler;  // but for CanEverFit: engine thread only
  Inbox inbox;
  EngineLoop loop;
  std::thread thread;
};

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(
    EngineOptions options, std::unique_ptr<ModelRunner> runner,
    EngineObserver* observer) {
  NIBBLE_CHECK(runner != nullptr);
  NIBBLE_RETURN_IF_ERROR(CheckOptions(options, runner->info()));
  auto impl =
      std::make_unique<Impl>(std::move(options), std::move(runner), observer);
  Impl* running = impl.get();
  impl->thread = std::thread([running] { running->loop.Run(); });
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Engine::~Engine() {
  impl_->inbox.Stop();
  impl_->thread.join();
}

absl::StatusOr<RequestHandle> Engine::Submit(Request request, TokenSink* sink) {
  EngineObserver* observer = impl_->observer;
  if (observer != nullptr) observer->OnReceived();
  absl::StatusOr<RequestHandle> handle = impl_->Admit(std::move(request), sink);
  if (!handle.ok() && observer != nullptr) {
    observer->OnRejected(ErrorRejection(handle.status()));
  }
  return handle;
}

absl::StatusOr<RequestHandle> Engine::Impl::Admit(Request request,
                                                  TokenSink* sink) {
  const model::Tokenizer& tokenizer = runner->tokenizer();
  NIBBLE_RETURN_IF_ERROR(
      ValidateRequest(request, options, tokenizer.vocab_size()));
  NIBBLE_RETURN_IF_ERROR(inbox.CheckRoom(request.id));
  if (Clock::now() >= request.deadline) {
    return RejectionError(Rejection::kDeadline,
                          absl::StatusCode::kDeadlineExceeded,
                          "the deadline passed before anything was computed");
  }
  NIBBLE_ASSIGN_OR_RETURN(
      PreparedPrompt prompt,
      PreparePrompt(request.prompt, options.max_prompt_bytes, tokenizer,
                    chat_template));
  auto live = std::make_unique<LiveRequest>(std::move(request), sink);
  live->Prepare(std::move(prompt.ids), std::move(prompt.text), tokenizer);
  NIBBLE_RETURN_IF_ERROR(SetLength(*live));
  return inbox.Push(std::move(live));
}

absl::Status Engine::Impl::SetLength(LiveRequest& live) const {
  const int64_t prompt = live.prompt_tokens();
  const std::optional<int32_t> asked = live.request.max_new_tokens;
  const int64_t room = max_context - prompt;
  if (room < 0 || (room == 0 && asked != 0)) {
    absl::Status status = RejectionError(
        Rejection::kTooLong, absl::StatusCode::kInvalidArgument,
        absl::StrCat("the prompt is too long: n_prompt = ", prompt,
                     " tokens, n_ctx = ", max_context,
                     room == 0 ? ", which leaves no room to generate" : ""));
    status = WithNumber(std::move(status), "n_prompt", prompt);
    return WithNumber(std::move(status), "n_ctx", max_context);
  }
  const scheduler::SchedulerOptions& pool = scheduler.options();
  const int64_t pool_tokens = int64_t{pool.pages} * pool.page_size;
  int64_t wanted = 0;
  int64_t limit = room;
  if (asked.has_value()) {
    wanted = *asked;
  } else {
    // Nobody asked for more than the pool holds.
    wanted = options.default_max_new_tokens;
    limit = std::clamp<int64_t>(pool_tokens - prompt, 1, room);
  }
  live.max_new_tokens = static_cast<int32_t>(std::min(wanted, limit));
  live.limited_by_context = limit < wanted;
  const int64_t tokens = prompt + live.max_new_tokens;
  if (!scheduler.CanEverFit(tokens)) {
    return RejectionError(
        Rejection::kNeverFits, absl::StatusCode::kFailedPrecondition,
        absl::StrCat("n_prompt = ", prompt, " and max_new_tokens = ",
                     live.max_new_tokens, " tokens can never fit the ",
                     pool.pages, " KV pages of ", pool.page_size, " tokens"));
  }
  return absl::OkStatus();
}

void Engine::Cancel(RequestHandle handle) { impl_->inbox.Cancel(handle); }
void Engine::Drain() { impl_->inbox.Drain(); }
void Engine::CancelAll() { impl_->inbox.CancelAll(); }
EngineSnapshot Engine::snapshot() const { return impl_->inbox.snapshot(); }
const EngineOptions& Engine::options() const { return impl_->options; }
const RunnerInfo& Engine::info() const { return impl_->runner->info(); }
const model::Tokenizer& Engine::tokenizer() const {
  return impl_->runner->tokenizer();
}
const absl::StatusOr<model::ChatTemplate>& Engine::chat_template() const {
  return impl_->chat_template;
}
int32_t Engine::max_context() const { return impl_->max_context; }

}  // namespace nibble::engine
