#include "server/health.h"

#include <algorithm>

#include "base/log.h"

namespace nibble::server {
namespace {

const char* const kServices[] = {"", "nibble.v1.Generation",
                                 "nibble.v1.Models"};

}  // namespace

Health::Health(ModelRegistry& registry, std::chrono::milliseconds stall_timeout,
               grpc::HealthCheckServiceInterface* service)
    : registry_(registry), stall_timeout_(stall_timeout), service_(service) {
  const std::lock_guard lock(mutex_);
  for (const char* name : kServices) Report(name, false);
  for (const auto& model : registry_.models()) Report(model->name(), false);
}

bool Health::IsStalled(const engine::EngineSnapshot& snapshot,
                       engine::Clock::time_point now, Watch& watch) const {
  // A step that ended, or idleness in between, starts the wait anew.
  if (!watch.had_work || snapshot.last_step != watch.last_step) {
    watch.work_start = now;
  }
  watch.had_work = snapshot.has_work;
  watch.last_step = snapshot.last_step;
  return snapshot.has_work && stall_timeout_.count() > 0 &&
         now - watch.work_start > stall_timeout_;
}

void Health::Update(engine::Clock::time_point now) {
  bool any_serving = false;
  bool any_stalled = false;
  for (const auto& model : registry_.models()) {
    const engine::Engine* engine = model->engine();
    if (engine == nullptr) continue;
    const bool was_serving = model->serving();
    const bool stalled =
        IsStalled(engine->snapshot(), now, watches_[model.get()]);
    model->set_stalled(stalled);
    if (stalled && was_serving) {
      Log(LogLevel::kError, "model stalled: it has work and ends no step")
          .With("model", model->name())
          .With("seconds",
                std::chrono::duration<double>(stall_timeout_).count());
    } else if (!stalled && !was_serving) {
      Log(LogLevel::kInfo, "model goes on").With("model", model->name());
    }
    any_serving |= !stalled;
    any_stalled |= stalled;
  }
  const std::lock_guard lock(mutex_);
  serving_ = any_serving && !any_stalled && !draining_;
  for (const char* name : kServices) Report(name, serving_);
  for (const auto& model : registry_.models()) {
    Report(model->name(), model->serving() && !draining_);
  }
}

void Health::Drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
  serving_ = false;
  for (const auto& [name, serving] : std::map(reported_)) Report(name, false);
}

bool Health::serving() const {
  const std::lock_guard lock(mutex_);
  return serving_;
}

bool Health::draining() const {
  const std::lock_guard lock(mutex_);
  return draining_;
}

void Health::Report(const std::string& service, bool serving) {
  const auto [it, added] = reported_.emplace(service, serving);
  if (!added && it->second == serving) return;
  it->second = serving;
  service_->SetServingStatus(service, serving);
}

}  // namespace nibble::server
