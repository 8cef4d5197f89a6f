// The whole server but its process: ports, models, health, drain.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "server/call_tracker.h"
#include "server/config.h"
#include "server/generation_service.h"
#include "server/health.h"
#include "server/http_server.h"
#include "server/listener.h"
#include "server/metrics.h"
#include "server/model_registry.h"

namespace nibble::server {

// Owned by main, or by a test. Create, LoadModels and the destructor are the
// owner's thread's; Drain, CancelAll and WaitDrained may be called from any.
class Server final {
 public:
  // Binds the ports and answers on them; models are not loaded yet, and health
  // says so. ALREADY_EXISTS names a busy port.
  static absl::StatusOr<std::unique_ptr<Server>> Create(ServerConfig config);
  // Ends at once what still runs: call Drain and WaitDrained first.
  ~Server();

  // Loads the models one after the other. A file that is broken is reported
  // and left out; an error means that none could be loaded.
  absl::Status LoadModels();

  // Refuses new requests from now on and reports NOT_SERVING; what runs goes
  // on, and is cancelled when --drain-timeout is over.
  void Drain();
  // Cancels what runs; a drain then ends soon, also if clients do not read.
  void CancelAll();
  // Waits until Drain was called and every generation call has ended, or was
  // cancelled and did not go.
  void WaitDrained();

  // The bound addresses: gRPC's, in the order of --listen.
  std::vector<std::string> addresses() const { return listener_->names(); }
  // /metrics' address; empty when it is off.
  std::string metrics_address() const;

  // What /metrics says.
  std::string RenderMetrics() const;

 private:
  explicit Server(ServerConfig config);

  absl::Status StartHttp();
  void StartGrpc();
  void Monitor();
  void Tick(engine::Clock::time_point now);
  void TickDrain(engine::Clock::time_point now);
  absl::Status WritePortFile() const;
  std::optional<HttpResponse> AnswerHttp(std::string_view path) const;

  const ServerConfig config_;
  Metrics metrics_;
  ModelRegistry registry_;  // its engines report to metrics_
  CallTracker calls_;
  CallContext context_;
  GenerationService generation_{context_};
  ModelsService models_{registry_};
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<Health> health_;
  std::unique_ptr<Listener> listener_;  // hands connections to acceptor_
  std::unique_ptr<HttpServer> http_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;                       // guarded by mutex_
  bool draining_ = false;                       // guarded by mutex_
  bool drained_ = false;                        // guarded by mutex_
  bool timed_out_ = false;                      // guarded by mutex_
  engine::Clock::time_point drain_deadline_{};  // guarded by mutex_
  std::thread monitor_;
};

}  // namespace nibble::server
