#include "server/generate_call.h"

#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "server/request_from_proto.h"
#include "server/response_to_proto.h"

namespace nibble::server {
namespace {

double Milliseconds(engine::Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

engine::Clock::time_point DeadlineOf(const grpc::CallbackServerContext& call) {
  const auto now = std::chrono::system_clock::now();
  const auto left = call.deadline() - now;
  // No deadline is the end of time; adding it would overflow.
  constexpr std::chrono::hours kForever{24 * 365 * 10};
  if (call.deadline() > now + kForever) {
    return engine::Clock::time_point::max();
  }
  return engine::Clock::now() + left;
}

bool IsPast(engine::Clock::time_point deadline) {
  // gRPC's timers and our clock may differ by so much; on a busy machine 5 ms
  // have been seen.
  constexpr std::chrono::milliseconds kTolerance{20};
  return deadline != engine::Clock::time_point::max() &&
         engine::Clock::now() + kTolerance >= deadline;
}

absl::Status GenerateCall::Prepare(v1::GenerateRequest proto,
                                   engine::Request& request) {
  request_id_ = RequestIdOf(proto);
  auto model = context_.registry->Find(proto.model());
  if (!model.ok()) {
    context_.metrics->CountRefusal(kUnknownModelLabel,
                                   absl::IsNotFound(model.status())
                                       ? Refusal::kUnknownModel
                                       : Refusal::kInvalid);
    return model.status();
  }
  model_ = (*model)->name();
  if ((*model)->engine() == nullptr) {
    context_.metrics->CountRefusal(model_, Refusal::kModelNotServing);
    return (*model)->WhyNot();
  }
  engine_ = (*model)->engine();
  auto made = RequestFromProto(std::move(proto));
  if (!made.ok()) {
    context_.metrics->CountRefusal(model_, Refusal::kInvalid);
    return made.status();
  }
  request = *std::move(made);
  return absl::OkStatus();
}

absl::Status GenerateCall::Submit(v1::GenerateRequest proto,
                                  engine::Clock::time_point deadline,
                                  engine::TokenSink* sink) {
  engine::Request request;
  absl::Status status = Prepare(std::move(proto), request);
  if (status.ok()) {
    request.id = request_id_;
    request.arrival = arrival_;
    request.deadline = deadline;
    asked_ = request.output;
    auto handle = engine_->Submit(std::move(request), sink);
    if (handle.ok()) {
      handle_ = *handle;
      submitted_.store(true, std::memory_order_release);
      return absl::OkStatus();
    }
    status = handle.status();
  }
  LogRefusal(status);
  return status;
}

void GenerateCall::Cancel() {
  if (submitted_.load(std::memory_order_acquire)) engine_->Cancel(handle_);
}

void GenerateCall::Take(engine::PromptInfo prompt, v1::PromptInfo& proto) {
  ToProto(std::move(prompt), asked_, engine_->tokenizer(), proto);
}

void GenerateCall::Take(engine::Delta& delta, std::string* text,
                        google::protobuf::RepeatedPtrField<v1::Token>* tokens,
                        v1::Finish* finish) {
  text->append(delta.text);
  for (engine::OutputToken& token : delta.tokens) {
    ToProto(std::move(token), asked_, engine_->tokenizer(), *tokens->Add());
  }
  if (!delta.finish.has_value()) return;
  ToProto(*delta.finish, *finish);
  ++outputs_finished_;
  last_finish_ = *std::move(delta.finish);
}

void GenerateCall::LogRefusal(const absl::Status& status) const {
  Log(LogLevel::kInfo, "request refused")
      .With("request_id", request_id_)
      .With("model", model_)
      .With("code", absl::StatusCodeToString(status.code()))
      .With("error", std::string(status.message()));
}

void GenerateCall::LogFinish(const engine::RequestResult& result) const {
  Log line(LogLevel::kInfo, "request finished");
  line.With("request_id", request_id_).With("model", model_);
  if (result.status.ok()) {
    line.With("reason", std::string(engine::Name(last_finish_.reason)));
  } else {
    line.With("reason", absl::StatusCodeToString(result.status.code()))
        .With("error", std::string(result.status.message()));
  }
  line.With("outputs", outputs_finished_)
      .With("prompt_tokens", result.usage.prompt_tokens)
      .With("cached_tokens", result.usage.cached_tokens)
      .With("generated_tokens", result.usage.generated_tokens);
  if (outputs_finished_ > 0) {
    line.With("queue_ms", Milliseconds(last_finish_.timings.queue))
        .With("first_token_ms", Milliseconds(last_finish_.timings.first_token));
  }
  line.With("total_ms", Milliseconds(engine::Clock::now() - arrival_));
}

}  // namespace nibble::server
