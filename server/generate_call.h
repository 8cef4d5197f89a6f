// What the generation methods share: from a message to a submitted request,
// and the log line when it is over.
#pragma once

#include <atomic>
#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "engine/engine.h"
#include "grpcpp/server_context.h"
#include "nibble/v1/nibble.pb.h"
#include "server/call_tracker.h"
#include "server/metrics.h"
#include "server/model_registry.h"

namespace nibble::server {

// The parts of the server that calls use; borrowed, outlive every call.
struct CallContext {
  ModelRegistry* registry = nullptr;
  Metrics* metrics = nullptr;
  CallTracker* calls = nullptr;
  engine::Clock::duration write_stall_timeout{};  // 0: none
};

// The call's deadline on the engine's clock.
engine::Clock::time_point DeadlineOf(const grpc::CallbackServerContext& call);

// Whether a cancellation seen now is the deadline's doing: the engine then
// ends the request by itself, and says so.
bool IsPast(engine::Clock::time_point deadline);

// One request of a call: its names, its engine, and what is logged of it. Used
// by the handler until Submit, then by the engine's thread, except Cancel.
class GenerateCall final {
 public:
  explicit GenerateCall(const CallContext& context) : context_(context) {}

  // Finds the model, builds and submits the request; counts and logs it when
  // it is refused. On OK the sink gets its OnFinish.
  absl::Status Submit(v1::GenerateRequest proto,
                      engine::Clock::time_point deadline,
                      engine::TokenSink* sink);
  // Any thread; does nothing unless Submit has succeeded.
  void Cancel();

  // Fill the wire's messages and remember what the log line says.
  void Take(engine::PromptInfo prompt, v1::PromptInfo& proto);
  void Take(engine::Delta& delta, std::string* text,
            google::protobuf::RepeatedPtrField<v1::Token>* tokens,
            v1::Finish* finish);
  void LogFinish(const engine::RequestResult& result) const;

  const std::string& request_id() const { return request_id_; }
  const std::string& model() const { return model_; }

 private:
  absl::Status Prepare(v1::GenerateRequest proto, engine::Request& request);
  void LogRefusal(const absl::Status& status) const;

  const CallContext& context_;
  std::string request_id_;
  std::string model_;
  engine::Engine* engine_ = nullptr;
  engine::RequestHandle handle_ = 0;
  std::atomic<bool> submitted_{false};  // set after engine_ and handle_
  engine::OutputOptions asked_;
  engine::Clock::time_point arrival_ = engine::Clock::now();
  int outputs_finished_ = 0;
  engine::OutputFinish last_finish_;
};

}  // namespace nibble::server
