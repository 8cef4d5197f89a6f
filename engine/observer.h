// What an engine reports about itself, for metrics.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/request.h"
#include "scheduler/scheduler.h"

namespace nibble::engine {

// One step.
struct StepStats {
  Clock::duration duration{};  // schedule to commit
  Clock::duration model{};     // forward and sampling
  Clock::duration quantize{};  // activation quantization, where separate
  int32_t narrow_rows = 0;
  int32_t wide_rows = 0;
  int32_t sequences = 0;
  int32_t preempted = 0;
  int32_t sampled_tokens = 0;  // as RequestStats::usage counts them
};

// One output that ended, or a request that failed after it was accepted.
struct RequestStats {
  FinishReason reason = FinishReason::kError;
  Usage usage;
  Timings timings;
  Clock::duration total{};  // arrival to end
  int32_t max_new_tokens = 0;
  // Gaps between tokens are reported one by one through OnInterToken.
};

enum class Rejection : uint8_t {
  kQueueFull,    // requests
  kQueueTokens,  // tokens
  kQueueTime,    // max_queue passed before the first step
  kDeadline,     // passed before anything was computed
  kTooLong,
  kNeverFits,
  kInvalid,
  kDuplicateId,
  kDraining,
};
inline constexpr int kNumRejections = 9;
std::string_view Name(Rejection rejection);

// Implemented by the server's metrics. Thread-safe; must not block. One
// request is exactly one OnReceived and then either one OnRejected or, once
// it is over, one OnFinished, so received = finished + rejected + in flight.
// A request with n outputs reports its finish once, with summed usage.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  virtual void OnReceived() = 0;
  virtual void OnRejected(Rejection reason) = 0;
  virtual void OnFirstToken(Clock::duration since_arrival) = 0;
  virtual void OnInterToken(Clock::duration gap) = 0;
  virtual void OnFinished(const RequestStats& stats) = 0;
  virtual void OnStep(const StepStats& stats) = 0;
};

// The engine's state at one moment, for gauges and health.
struct EngineSnapshot {
  int32_t requests_waiting = 0;  // accepted, no row computed yet
  int32_t requests_running = 0;
  scheduler::SchedulerStats scheduler;
  bool has_work = false;
  // End of the last step, or when work came to an engine that had none.
  Clock::time_point last_step{};
  bool draining = false;
};

}  // namespace nibble::engine
