// The models one server serves.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "nibble/v1/nibble.pb.h"
#include "server/config.h"
#include "server/metrics.h"

namespace nibble::server {

// A --model and what became of it. Owned by the registry. Thread-safe: the
// engine is published once, with the state.
class ServedModel final {
 public:
  ServedModel(ModelArg arg, engine::EngineObserver* observer)
      : arg_(std::move(arg)), observer_(observer) {}

  const std::string& name() const { return arg_.name; }
  const std::string& path() const { return arg_.path; }

  // Loads the file and starts its engine. Called once.
  absl::Status Load(const ServerConfig& config);

  // Null while loading and after a failure.
  engine::Engine* engine() const {
    return state_.load(std::memory_order_acquire) == State::kLoaded
               ? engine_.get()
               : nullptr;
  }
  // Why engine() is null: UNAVAILABLE, with the file's error if it failed.
  absl::Status WhyNot() const;
  bool failed() const { return state_.load() == State::kFailed; }

  // Set by the health monitor.
  void set_stalled(bool stalled) { stalled_ = stalled; }
  bool serving() const;

  // Everything GetModel says.
  v1::Model Describe() const;

 private:
  enum class State { kLoading, kLoaded, kFailed };

  v1::ModelState StateToProto() const;

  const ModelArg arg_;
  engine::EngineObserver* const observer_;  // the metrics'
  std::atomic<State> state_{State::kLoading};
  std::atomic<bool> stalled_{false};
  absl::Status failure_;                    // before kFailed is stored
  std::unique_ptr<engine::Engine> engine_;  // before kLoaded is stored
};

// Owned by the server; the list itself never changes after construction.
class ModelRegistry final {
 public:
  ModelRegistry(const ServerConfig& config, Metrics& metrics);

  // The model of that name; the only one if it is empty. NOT_FOUND lists the
  // names there are.
  absl::StatusOr<ServedModel*> Find(std::string_view name) const;
  const std::vector<std::unique_ptr<ServedModel>>& models() const {
    return models_;
  }

  void Drain();
  void CancelAll();

 private:
  std::vector<std::unique_ptr<ServedModel>> models_;
};

}  // namespace nibble::server
