// What Prometheus sees. metrics.cc and metrics_text.cc are the only files that
// know its library; docs/operations.md lists the names.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model_runner.h"
#include "engine/observer.h"

namespace nibble::server {

// Why the server refused a request before any engine saw it.
enum class Refusal : uint8_t {
  kInvalid,          // did not parse, or the engine could not be asked
  kUnknownModel,     // no model of that name
  kModelNotServing,  // loading, or could not be loaded
};

// The value of model_name for requests that name no model we have; model names
// have no parentheses.
inline constexpr std::string_view kUnknownModelLabel = "(unknown)";

// A model's state at the moment of a scrape. Borrowed, plain values.
struct ModelGauges {
  std::string name;
  bool serving = false;
  const engine::RunnerInfo* info = nullptr;  // null: not loaded
  engine::EngineSnapshot snapshot;
};

// The server's state at the moment of a scrape.
struct ServerGauges {
  std::vector<ModelGauges> models;
  uint64_t connections_accepted = 0;
  uint64_t connections_refused = 0;
  bool draining = false;
};

// All counters and histograms. Owned by the server, outlives the engines.
// Thread-safe, but models are added before the first request.
class Metrics final {
 public:
  explicit Metrics(bool vllm_names);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // The observer of the model's engine; every series of it is 0 from now on.
  engine::EngineObserver* AddModel(const std::string& name);

  // One request received and refused. `model` is a name given to AddModel, or
  // kUnknownModelLabel.
  void CountRefusal(std::string_view model, Refusal refusal);
  // A stream cancelled because its client did not read.
  void CountStalledStream();

  // The text format 0.0.4. Changes nothing: two calls with no traffic between
  // them give the same text.
  std::string Render(const ServerGauges& gauges) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::server
