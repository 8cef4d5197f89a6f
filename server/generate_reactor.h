// The calls of Generate, GenerateStream and GenerateBatch.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/token_sink.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/call_tracker.h"
#include "server/chunk_outbox.h"
#include "server/generate_call.h"

namespace nibble::server {

// Both kinds of call have several owners: gRPC until OnDone, and each request's
// engine until OnFinish has returned (not at all if Submit failed). The last of
// them deletes the call. gRPC calls OnCancel after the handler has returned, so
// after Submit.

// Generate: collects the outputs and answers once.
class UnaryReactor final : public grpc::ServerUnaryReactor,
                           public engine::TokenSink,
                           public LiveCall {
 public:
  // Starts the call; it deletes itself. `response` is gRPC's.
  static grpc::ServerUnaryReactor* Start(const CallContext& context,
                                         grpc::CallbackServerContext* call,
                                         const grpc::ByteBuffer& request,
                                         grpc::ByteBuffer* response);

 private:
  UnaryReactor(const CallContext& context, grpc::CallbackServerContext* call,
               grpc::ByteBuffer* response);
  absl::Status Submit(const grpc::ByteBuffer& bytes);

  void OnPrompt(engine::PromptInfo prompt) override;
  void OnDelta(engine::Delta delta) override;
  void OnFinish(engine::RequestResult result) override;
  void OnCancel() override;
  void OnDone() override;
  grpc_call* CheckStall(engine::Clock::time_point now) override;
  void Answer(const absl::Status& status);
  void Release();

  const CallContext& context_;
  grpc::CallbackServerContext* const call_;  // gRPC's, until OnDone
  grpc::ByteBuffer* const response_bytes_;
  const engine::Clock::time_point deadline_;
  GenerateCall request_;
  v1::GenerateResponse response_;  // engine thread, from Submit on
  std::atomic<int> owners_{2};
  // When Finish was called; the epoch before that.
  std::atomic<engine::Clock::time_point> answered_{};
  bool reset_ = false;  // monitor thread
};

// GenerateStream and GenerateBatch: the chunks of one or more requests, one
// write in flight, what comes meanwhile merged.
class StreamReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                            public LiveCall {
 public:
  enum class Kind { kStream, kBatch };

  // Starts the call; it deletes itself.
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(
      const CallContext& context, grpc::CallbackServerContext* call,
      const grpc::ByteBuffer& bytes, Kind kind);

 private:
  // One request of the call. Its sink methods run on its model's engine
  // thread.
  class Sub final : public engine::TokenSink {
   public:
    Sub(StreamReactor* owner, int32_t index)
        : owner_(owner), index_(index), request_(owner->context_) {}
    absl::Status Submit(v1::GenerateRequest proto);
    void Cancel() { request_.Cancel(); }
    const std::string& request_id() const { return request_.request_id(); }

   private:
    void OnPrompt(engine::PromptInfo prompt) override;
    void OnDelta(engine::Delta delta) override;
    void OnFinish(engine::RequestResult result) override;

    StreamReactor* const owner_;
    const int32_t index_;
    GenerateCall request_;
    bool first_ = true;
    std::optional<v1::PromptInfo> prompt_;  // until the first chunk
  };

  StreamReactor(const CallContext& context, grpc::CallbackServerContext* call,
                Kind kind);
  absl::Status Submit(const grpc::ByteBuffer& bytes);
  void SubmitBatch(v1::GenerateBatchRequest batch);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  grpc_call* CheckStall(engine::Clock::time_point now) override;

  void Send(v1::GenerateBatchChunk chunk);
  // A request of the call is over; `status` is what its client hears.
  void EndRequest(int32_t index, const absl::Status& status,
                  const std::string& request_id);
  // Starts the next write or, when all is over and sent, ends the call.
  void Pump();
  // Drops what waits and cancels every request; the call ends with `status`.
  void Abandon(const absl::Status& status);
  void CancelRequests();
  bool abandoned();
  void Release();

  const CallContext& context_;
  grpc::CallbackServerContext* const call_;  // gRPC's, until OnDone
  const Kind kind_;
  const engine::Clock::time_point deadline_;
  std::vector<std::unique_ptr<Sub>> subs_;  // fixed before the first Submit
  std::atomic<int> owners_{1};              // gRPC, and each live request

  std::mutex mutex_;  // guards what follows; never held while calling out
  ChunkOutbox outbox_;
  int live_requests_ = 0;
  bool submitting_ = true;  // the handler may still add requests
  bool abandoned_ = false;  // nothing more will be sent
  bool writing_ = false;
  bool finished_ = false;  // Finish was called
  bool reset_ = false;     // the monitor cancels the gRPC call
  engine::Clock::time_point write_start_{};
  grpc::Status final_;

  grpc::ByteBuffer write_bytes_;  // the write in flight
};

}  // namespace nibble::server
