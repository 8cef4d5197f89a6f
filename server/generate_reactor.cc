#include "server/generate_reactor.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "engine/errors.h"
#include "server/grpc_status.h"
#include "server/parse_request.h"
#include "server/response_to_proto.h"

namespace nibble::server {
namespace {

constexpr int kMaxBatch = 256;
// What may wait for a slow client, all requests of the call together.
constexpr size_t kMaxOutboxBytes = 16 << 20;

// Runs a handler's work; a throw (memory ran out, most likely) must not reach
// gRPC, which would answer UNIMPLEMENTED.
template <typename Work>
absl::Status Guard(Work work) {
  try {
    return work();
  } catch (const std::exception& error) {
    return absl::InternalError(
        absl::StrCat("the request could not be handled: ", error.what()));
  }
}

absl::Status ParseCounted(const CallContext& context,
                          const grpc::ByteBuffer& bytes,
                          google::protobuf::Message& message) {
  absl::Status status = ParseRequest(bytes, message);
  if (!status.ok()) {
    context.metrics->CountRefusal(kUnknownModelLabel, Refusal::kInvalid);
    Log(LogLevel::kInfo, "request refused")
        .With("error", std::string(status.message()));
  }
  return status;
}

}  // namespace

// ------------------------------------------------------------- UnaryReactor

UnaryReactor::UnaryReactor(const CallContext& context,
                           grpc::CallbackServerContext* call,
                           grpc::ByteBuffer* response)
    : context_(context),
      call_(call),
      response_bytes_(response),
      deadline_(DeadlineOf(*call)),
      request_(context) {
  context_.calls->Add(this);
}

grpc::ServerUnaryReactor* UnaryReactor::Start(const CallContext& context,
                                              grpc::CallbackServerContext* call,
                                              const grpc::ByteBuffer& request,
                                              grpc::ByteBuffer* response) {
  auto* reactor = new UnaryReactor(context, call, response);
  const absl::Status status = Guard([&] { return reactor->Submit(request); });
  if (!status.ok()) {
    reactor->Answer(status);
    reactor->Release();  // the engine's share
  }
  return reactor;
}

absl::Status UnaryReactor::Submit(const grpc::ByteBuffer& bytes) {
  v1::GenerateRequest proto;
  NIBBLE_RETURN_IF_ERROR(ParseCounted(context_, bytes, proto));
  return request_.Submit(std::move(proto), deadline_, this);
}

void UnaryReactor::OnPrompt(engine::PromptInfo prompt) {
  request_.Take(std::move(prompt), *response_.mutable_prompt());
}

void UnaryReactor::OnDelta(engine::Delta delta) {
  while (response_.outputs_size() <= delta.index) {
    response_.add_outputs()->set_index(response_.outputs_size() - 1);
  }
  v1::Output& output = *response_.mutable_outputs(delta.index);
  v1::Finish* finish =
      delta.finish.has_value() ? output.mutable_finish() : nullptr;
  request_.Take(delta, output.mutable_text(), output.mutable_tokens(), finish);
}

void UnaryReactor::OnFinish(engine::RequestResult result) {
  request_.LogFinish(result);
  if (result.status.ok()) {
    response_.set_request_id(request_.request_id());
    response_.set_model(request_.model());
    ToProto(result.usage, *response_.mutable_usage());
    *response_bytes_ = SerializeResponse(response_);
  }
  Answer(result.status);
  Release();
}

void UnaryReactor::Answer(const absl::Status& status) {
  answered_.store(engine::Clock::now());
  Finish(ToGrpcStatus(status, request_.request_id()));
}

grpc_call* UnaryReactor::CheckStall(engine::Clock::time_point now) {
  const auto limit = context_.write_stall_timeout;
  const auto answered = answered_.load();
  if (limit.count() == 0 || reset_ || answered == engine::Clock::time_point() ||
      now - answered < limit) {
    return nullptr;
  }
  reset_ = true;
  context_.metrics->CountStalledStream();
  grpc_call_ref(call_->c_call());
  return call_->c_call();
}

void UnaryReactor::OnCancel() {
  if (!IsPast(deadline_)) request_.Cancel();
}

void UnaryReactor::OnDone() {
  context_.calls->Remove(this);
  Release();
}

void UnaryReactor::Release() {
  if (owners_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

// ------------------------------------------------------- StreamReactor::Sub

absl::Status StreamReactor::Sub::Submit(v1::GenerateRequest proto) {
  owner_->owners_.fetch_add(1, std::memory_order_relaxed);
  absl::Status status = Guard([&] {
    return request_.Submit(std::move(proto), owner_->deadline_, this);
  });
  if (!status.ok()) {
    owner_->EndRequest(index_, status, request_id());
  } else if (owner_->abandoned()) {
    request_.Cancel();  // it came too late for CancelRequests
  }
  return status;
}

void StreamReactor::Sub::OnPrompt(engine::PromptInfo prompt) {
  request_.Take(std::move(prompt), prompt_.emplace());
}

void StreamReactor::Sub::OnDelta(engine::Delta delta) {
  if (delta.text.empty() && delta.tokens.empty() && !delta.finish.has_value()) {
    return;
  }
  v1::GenerateBatchChunk chunk;
  chunk.set_request_index(index_);
  v1::GenerateChunk& proto = *chunk.mutable_chunk();
  proto.set_index(delta.index);
  if (first_) {
    first_ = false;
    proto.set_request_id(request_.request_id());
    proto.set_model(request_.model());
    if (prompt_.has_value()) *proto.mutable_prompt() = *std::move(prompt_);
  }
  v1::Finish* finish =
      delta.finish.has_value() ? proto.mutable_finish() : nullptr;
  request_.Take(delta, proto.mutable_text(), proto.mutable_tokens(), finish);
  owner_->Send(std::move(chunk));
}

void StreamReactor::Sub::OnFinish(engine::RequestResult result) {
  request_.LogFinish(result);
  owner_->EndRequest(index_, result.status, request_id());
}

// ------------------------------------------------------------ StreamReactor

StreamReactor::StreamReactor(const CallContext& context,
                             grpc::CallbackServerContext* call, Kind kind)
    : context_(context),
      call_(call),
      kind_(kind),
      deadline_(DeadlineOf(*call)) {
  context_.calls->Add(this);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* StreamReactor::Start(
    const CallContext& context, grpc::CallbackServerContext* call,
    const grpc::ByteBuffer& bytes, Kind kind) {
  auto* reactor = new StreamReactor(context, call, kind);
  const absl::Status status = Guard([&] { return reactor->Submit(bytes); });
  {
    const std::lock_guard lock(reactor->mutex_);
    reactor->submitting_ = false;
    if (!status.ok()) reactor->final_ = ToGrpcStatus(status);
  }
  reactor->Pump();
  return reactor;
}

absl::Status StreamReactor::Submit(const grpc::ByteBuffer& bytes) {
  if (kind_ == Kind::kStream) {
    v1::GenerateRequest proto;
    NIBBLE_RETURN_IF_ERROR(ParseCounted(context_, bytes, proto));
    subs_.push_back(std::make_unique<Sub>(this, 0));
    live_requests_ = 1;
    // Its error is the call's: EndRequest has seen to it.
    subs_.front()->Submit(std::move(proto)).IgnoreError();
    return absl::OkStatus();
  }
  v1::GenerateBatchRequest batch;
  NIBBLE_RETURN_IF_ERROR(ParseCounted(context_, bytes, batch));
  if (batch.requests_size() < 1 || batch.requests_size() > kMaxBatch) {
    context_.metrics->CountRefusal(kUnknownModelLabel, Refusal::kInvalid);
    return engine::FieldError(
        "requests",
        absl::StrCat(batch.requests_size(), " requests, not 1 to ", kMaxBatch));
  }
  SubmitBatch(std::move(batch));
  return absl::OkStatus();
}

void StreamReactor::SubmitBatch(v1::GenerateBatchRequest batch) {
  for (int i = 0; i < batch.requests_size(); ++i) {
    subs_.push_back(std::make_unique<Sub>(this, i));
  }
  live_requests_ = batch.requests_size();
  for (int i = 0; i < batch.requests_size(); ++i) {
    // Its error is a chunk of its own: EndRequest has sent it.
    subs_[i]->Submit(std::move(*batch.mutable_requests(i))).IgnoreError();
  }
}

void StreamReactor::Send(v1::GenerateBatchChunk chunk) {
  size_t bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    if (abandoned_) return;
    outbox_.Push(std::move(chunk));
    bytes = outbox_.bytes();
  }
  if (bytes > kMaxOutboxBytes) {
    Abandon(absl::CancelledError(
        absl::StrCat("the client reads too slowly: ", bytes,
                     " bytes wait, more than ", kMaxOutboxBytes)));
    return;
  }
  Pump();
}

void StreamReactor::EndRequest(int32_t index, const absl::Status& status,
                               const std::string& request_id) {
  {
    const std::lock_guard lock(mutex_);
    --live_requests_;
    if (!status.ok() && !abandoned_) {
      const grpc::Status shown = ToGrpcStatus(status, request_id);
      if (kind_ == Kind::kStream) {
        final_ = shown;
      } else {
        v1::GenerateBatchChunk chunk;
        chunk.set_request_index(index);
        chunk.mutable_error()->set_code(shown.error_code());
        chunk.mutable_error()->set_message(shown.error_message());
        outbox_.Push(std::move(chunk));
      }
    }
  }
  Pump();
  Release();
}

void StreamReactor::Pump() {
  std::optional<v1::GenerateBatchChunk> chunk;
  grpc::Status end;
  {
    const std::lock_guard lock(mutex_);
    if (writing_ || finished_) return;
    chunk = outbox_.Pop();
    if (chunk.has_value()) {
      writing_ = true;
      write_start_ = engine::Clock::now();
    } else if (live_requests_ == 0 && !submitting_) {
      finished_ = true;
      end = final_;
    } else {
      return;
    }
  }
  if (!chunk.has_value()) {
    Finish(end);
  } else {
    write_bytes_ = kind_ == Kind::kBatch ? SerializeResponse(*chunk)
                                         : SerializeResponse(chunk->chunk());
    StartWrite(&write_bytes_);
  }
}

void StreamReactor::OnWriteDone(bool ok) {
  {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok && !abandoned_) {
      // The connection is gone; OnCancel ends the requests.
      abandoned_ = true;
      outbox_.Clear();
    }
  }
  Pump();
}

void StreamReactor::OnCancel() {
  {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
    outbox_.Clear();
    if (final_.ok()) {
      final_ = ToGrpcStatus(absl::CancelledError("the call was cancelled"));
    }
  }
  if (!IsPast(deadline_)) CancelRequests();
  Pump();
}

grpc_call* StreamReactor::CheckStall(engine::Clock::time_point now) {
  const auto limit = context_.write_stall_timeout;
  bool must_reset = false;
  {
    const std::lock_guard lock(mutex_);
    if (limit.count() == 0 || !writing_ || reset_) return nullptr;
    if (now - write_start_ < limit) return nullptr;
    // The status goes out after the write in flight, so a client that reads
    // again soon hears why; one that does not is reset.
    must_reset = abandoned_ && now - write_start_ >= 2 * limit;
    if (abandoned_ && !must_reset) return nullptr;
    reset_ = must_reset;
  }
  if (must_reset) {
    grpc_call_ref(call_->c_call());
    return call_->c_call();
  }
  const auto seconds = std::chrono::duration<double>(limit).count();
  Abandon(absl::CancelledError(
      absl::StrCat("the client has read nothing for ", seconds,
                   " seconds (--write-stall-timeout)")));
  return nullptr;
}

void StreamReactor::Abandon(const absl::Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (abandoned_) return;
    abandoned_ = true;
    outbox_.Clear();
    final_ = ToGrpcStatus(WithReason(status, "SLOW_READER"));
  }
  Log(LogLevel::kWarning, "stream abandoned")
      .With("request_id", subs_.front()->request_id())
      .With("error", std::string(status.message()));
  context_.metrics->CountStalledStream();
  CancelRequests();
}

void StreamReactor::CancelRequests() {
  for (const auto& sub : subs_) sub->Cancel();
}

bool StreamReactor::abandoned() {
  const std::lock_guard lock(mutex_);
  return abandoned_;
}

void StreamReactor::OnDone() {
  context_.calls->Remove(this);
  Release();
}

void StreamReactor::Release() {
  if (owners_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

}  // namespace nibble::server
