// Whether each model, and the server, is fit to serve.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "grpcpp/health_check_service_interface.h"
#include "server/model_registry.h"

namespace nibble::server {

// Keeps gRPC's health service up to date: "" and the names of our services for
// the whole, each model under its name. Owned by the server. Update is the
// monitor thread's; the rest may be called from any thread.
class Health final {
 public:
  // `registry` and `service` outlive it; a stall_timeout of 0 is none.
  Health(ModelRegistry& registry, std::chrono::milliseconds stall_timeout,
         grpc::HealthCheckServiceInterface* service);

  // Looks at every engine and reports what changed.
  void Update(engine::Clock::time_point now);
  // From now on everything is NOT_SERVING.
  void Drain();

  // Fit to take requests: not draining, a model loaded, none stalled.
  bool serving() const;
  bool draining() const;

 private:
  // When a model's current work began, to tell a stall from long idleness.
  struct Watch {
    bool had_work = false;
    engine::Clock::time_point work_start{};
    engine::Clock::time_point last_step{};
  };

  bool IsStalled(const engine::EngineSnapshot& snapshot,
                 engine::Clock::time_point now, Watch& watch) const;
  void Report(const std::string& service, bool serving);

  ModelRegistry& registry_;
  const std::chrono::milliseconds stall_timeout_;
  grpc::HealthCheckServiceInterface* const service_;
  std::map<const ServedModel*, Watch> watches_;  // monitor thread

  mutable std::mutex mutex_;
  bool draining_ = false;                 // guarded by mutex_
  bool serving_ = false;                  // guarded by mutex_
  std::map<std::string, bool> reported_;  // guarded by mutex_
};

}  // namespace nibble::server
